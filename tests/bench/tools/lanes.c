// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * lanes on|off|sysfs: what laying out every receive queue of the v* devices of
 * this network namespace costs at the least: the same calls, one by one, with
 * no plan, no journal and no look at what came of it.
 *
 * on, off: for each NAPI napi-set (acknowledged), affinity and policy of its
 * thread; for each RX queue RPS. sysfs: each device's threaded file, no more.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

/* include/uapi/linux/netdev.h, as of 6.18 */
enum { NAPI_GET = 11, NAPI_SET = 14 };
enum { A_ID = 2, A_PID = 4, A_THREADED = 8 };

#define MOST 65536

struct request {
	struct nlmsghdr head;
	struct genlmsghdr generic;
	char room[64];
};

static int netlink = -1;
static uint16_t family;
static struct { uint32_t id, pid; } napis[MOST];
static size_t count;

static void put(struct request *to, uint16_t type, const void *data, size_t size)
{
	struct nlattr *at = (void *)((char *)to + NLMSG_ALIGN(to->head.nlmsg_len));

	at->nla_type = type;
	at->nla_len = NLA_HDRLEN + size;
	memcpy((char *)at + NLA_HDRLEN, data, size);
	to->head.nlmsg_len = NLMSG_ALIGN(to->head.nlmsg_len) +
			     NLA_ALIGN(at->nla_len);
}

static struct request request(uint16_t type, uint16_t flags, uint8_t command)
{
	return (struct request){
		.head = { .nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
			  .nlmsg_type = type,
			  .nlmsg_flags = NLM_F_REQUEST | flags },
		.generic = { .cmd = command, .version = 1 },
	};
}

static void take(const struct nlmsghdr *message)
{
	const char *at = (char *)NLMSG_DATA(message) + GENL_HDRLEN;
	const char *end = (char *)message + message->nlmsg_len;
	uint32_t id = 0, pid = 0;

	while (at < end) {
		const struct nlattr *attr = (void *)at;

		if (message->nlmsg_type == GENL_ID_CTRL) {
			if (attr->nla_type == CTRL_ATTR_FAMILY_ID)
				family = *(uint16_t *)(at + NLA_HDRLEN);
		} else if (attr->nla_type == A_ID) {
			id = *(uint32_t *)(at + NLA_HDRLEN);
		} else if (attr->nla_type == A_PID) {
			pid = *(uint32_t *)(at + NLA_HDRLEN);
		}
		at += NLA_ALIGN(attr->nla_len);
	}
	if (message->nlmsg_type == GENL_ID_CTRL)
		return;
	if (count == MOST)
		die("more than %d NAPIs", MOST);
	napis[count].id = id;
	napis[count++].pid = pid;
}

/* Sends one request and takes in what comes until the acknowledgement. */
static void ask(const struct request *what)
{
	static char buffer[1 << 18];

	if (send(netlink, what, what->head.nlmsg_len, 0) < 0)
		die("netlink: %s", strerror(errno));
	for (;;) {
		ssize_t left = recv(netlink, buffer, sizeof(buffer), 0);
		struct nlmsghdr *one = (void *)buffer;

		if (left < 0)
			die("netlink: %s", strerror(errno));
		for (; NLMSG_OK(one, left); one = NLMSG_NEXT(one, left)) {
			if (one->nlmsg_type == NLMSG_DONE)
				return;
			if (one->nlmsg_type == NLMSG_ERROR) {
				int code = *(int *)NLMSG_DATA(one);

				if (code)
					die("netlink: %s", strerror(-code));
				return;
			}
			take(one);
		}
	}
}

static void find_napis(void)
{
	struct request dump = request(family, NLM_F_DUMP, NAPI_GET);

	count = 0;
	ask(&dump);
}

static void set_threaded(uint32_t mode)
{
	for (size_t i = 0; i < count; i++) {
		struct request set = request(family, NLM_F_ACK, NAPI_SET);

		put(&set, A_ID, &napis[i].id, sizeof(napis[i].id));
		put(&set, A_THREADED, &mode, sizeof(mode));
		ask(&set);
	}
}

static void place_threads(void)
{
	const struct sched_param none = { 0 };
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (size_t i = 0; i < count; i++) {
		cpu_set_t own;

		CPU_ZERO(&own);
		CPU_SET(i % cpus, &own);
		if (sched_setaffinity(napis[i].pid, sizeof(own), &own) ||
		    sched_setscheduler(napis[i].pid, SCHED_BATCH, &none))
			die("thread %u: %s", napis[i].pid, strerror(errno));
	}
}

/* Returns false when there is no such file. */
static bool put_file(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file < 0)
		return false;
	if (write(file, text, strlen(text)) < 0)
		die("%s: %s", path, strerror(errno));
	close(file);
	return true;
}

static void steer(const char *name, const char *mask)
{
	for (int queue = 0;; queue++) {
		char path[512];

		snprintf(path, sizeof(path),
			 "/sys/class/net/%s/queues/rx-%d/rps_cpus", name, queue);
		if (!put_file(path, mask))
			return;
	}
}

static void set_device(const char *name, const char *mode)
{
	char path[512];

	snprintf(path, sizeof(path), "/sys/class/net/%s/threaded", name);
	if (!put_file(path, mode))
		die("%s: %s", path, strerror(errno));
}

static void every_device(void (*what)(const char *, const char *), const char *text)
{
	DIR *folder = opendir("/sys/class/net");
	struct dirent *entry;

	if (!folder)
		die("/sys/class/net: %s", strerror(errno));
	while ((entry = readdir(folder)))
		if (entry->d_name[0] == 'v')
			what(entry->d_name, text);
	closedir(folder);
}

int main(int argc, char **argv)
{
	struct request named = request(GENL_ID_CTRL, NLM_F_ACK, CTRL_CMD_GETFAMILY);
	bool on = argc == 2 && !strcmp(argv[1], "on");

	tool_name = "lanes";
	if (argc == 2 && !strcmp(argv[1], "sysfs")) {
		every_device(set_device, "1");
		return 0;
	}
	if (!on && (argc != 2 || strcmp(argv[1], "off")))
		die("usage: lanes on|off|sysfs");
	netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	put(&named, CTRL_ATTR_FAMILY_NAME, "netdev", sizeof("netdev"));
	ask(&named);
	find_napis();
	set_threaded(on);
	if (on) {
		find_napis();
		place_threads();
	}
	every_device(steer, on ? "3" : "0");
	printf("%zu\n", count);
	return 0;
}
