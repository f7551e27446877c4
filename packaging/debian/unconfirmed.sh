# SPDX-License-Identifier: GPL-2.0-or-later
# What replaces the guard of an apply that waits to be confirmed could lose the originals. So the
# upgrade is refused, by each package that has a part in it, or only some would be upgraded.
if [ "$1" = upgrade ] && [ -z "$DPKG_ROOT" ] && [ -e /var/lib/rxlane/confirm.json ] &&
		boot=$(cat /proc/sys/kernel/random/boot_id) && [ -n "$boot" ] &&
		grep -qF "$boot" /var/lib/rxlane/confirm.json; then
	echo "$DPKG_MAINTSCRIPT_PACKAGE: an apply waits to be confirmed; run \`rxlane confirm\` from a new login or \`rxlane rollback\`, then upgrade" >&2
	exit 1
fi
