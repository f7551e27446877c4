/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * LD_PRELOAD for ip and ethtool: what they ask the netdev family, and what
 * goes away while they do.
 *
 * NETDEV_LOG=FILE appends the number of each command sent, one a line.
 * FAIL_NTH=N sends the N-th napi-set of the process with the ID of a NAPI that
 * does not exist, as if it had gone away after the dump: the kernel refuses it.
 * RUN_AT=COMMAND runs the shell command in RUN before that command is sent for
 * the first time.
 * NO_GENERIC=1 refuses sockets of generic netlink, as sandboxes do.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <linux/genetlink.h>
#include <linux/rtnetlink.h>

#define NETDEV_CMD_NAPI_SET	14
#define NO_SUCH_NAPI		0x7ffffff0

static int is_generic(int fd)
{
	int protocol = -1;
	socklen_t len = sizeof(protocol);

	getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len);
	return protocol == NETLINK_GENERIC;
}

static void log_command(int cmd)
{
	const char *name = getenv("NETDEV_LOG");
	FILE *log = name ? fopen(name, "a") : NULL;

	if (log) {
		fprintf(log, "%d\n", cmd);
		fclose(log);
	}
}

static void run_before(int cmd)
{
	const char *at = getenv("RUN_AT"), *run = getenv("RUN");

	if (!at || !run || atoi(at) != cmd)
		return;
	unsetenv("RUN_AT");
	unsetenv("LD_PRELOAD");
	if (system(run))
		abort();
}

static void netdev_request(struct nlmsghdr *n)
{
	static int sets;
	const char *nth = getenv("FAIL_NTH");
	struct genlmsghdr *g = NLMSG_DATA(n);
	__u32 id = NO_SUCH_NAPI;

	log_command(g->cmd);
	run_before(g->cmd);
	if (g->cmd == NETDEV_CMD_NAPI_SET && nth && ++sets == atoi(nth))
		memcpy((char *)g + GENL_HDRLEN + RTA_LENGTH(0), &id,
		       sizeof(id));
}

static void request(int fd, struct nlmsghdr *n)
{
	if (is_generic(fd) && n->nlmsg_type != GENL_ID_CTRL)
		netdev_request(n);
}

int socket(int domain, int type, int protocol)
{
	int (*next)(int, int, int);

	if (domain == AF_NETLINK && protocol == NETLINK_GENERIC &&
	    getenv("NO_GENERIC")) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	next = dlsym(RTLD_NEXT, "socket");
	return next(domain, type, protocol);
}

/* libnetlink's way */
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	ssize_t (*next)(int, const struct msghdr *, int);

	request(fd, msg->msg_iov->iov_base);
	next = dlsym(RTLD_NEXT, "sendmsg");
	return next(fd, msg, flags);
}

/* libmnl's way */
ssize_t sendto(int fd, const void *buf, size_t len, int flags,
	       const struct sockaddr *to, socklen_t tolen)
{
	ssize_t (*next)(int, const void *, size_t, int,
			const struct sockaddr *, socklen_t);

	request(fd, (struct nlmsghdr *)buf);
	next = dlsym(RTLD_NEXT, "sendto");
	return next(fd, buf, len, flags, to, tolen);
}
