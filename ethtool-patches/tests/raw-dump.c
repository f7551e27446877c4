/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The least that showing the NAPIs of all devices can cost: the three dumps
 * that `ethtool --show-napi '*'` needs, links, NAPIs and queues, each read to
 * its end and not looked at.
 *
 * Prints how many messages each had. Numbers: linux/netdev.h.
 */

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/genetlink.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#define QUEUE_GET	10
#define NAPI_GET	11

static char buffer[1 << 17];

struct request {
	struct nlmsghdr n;
	union {
		struct genlmsghdr g;
		struct ifinfomsg i;
	};
	char attrs[32];
};

static void add_attr(struct request *req, int type, const void *data, int len)
{
	struct rtattr *rta = (void *)((char *)req + req->n.nlmsg_len);

	rta->rta_type = type;
	rta->rta_len = RTA_LENGTH(len);
	memcpy(RTA_DATA(rta), data, len);
	req->n.nlmsg_len += RTA_ALIGN(rta->rta_len);
}

/* Returns the number of messages of a dump, or -1. */
static int dump(int fd, const struct request *req)
{
	int count = 0, len;

	if (send(fd, req, req->n.nlmsg_len, 0) < 0)
		return -1;
	while ((len = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
		struct nlmsghdr *n = (void *)buffer;

		for (; NLMSG_OK(n, (unsigned int)len);
		     n = NLMSG_NEXT(n, len), count++) {
			if (n->nlmsg_type == NLMSG_ERROR)
				return -1;
			if (n->nlmsg_type == NLMSG_DONE)
				return count;
		}
	}
	return -1;
}

/* Returns the number of the netdev family, or -1. */
static int get_family(int fd)
{
	struct request req = {
		.n.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
		.n.nlmsg_type = GENL_ID_CTRL,
		.n.nlmsg_flags = NLM_F_REQUEST,
		.g.cmd = CTRL_CMD_GETFAMILY,
		.g.version = 1,
	};
	struct nlmsghdr *n = (void *)buffer;
	struct rtattr *rta = (void *)((char *)NLMSG_DATA(n) + GENL_HDRLEN);
	int left;

	add_attr(&req, CTRL_ATTR_FAMILY_NAME, "netdev", sizeof("netdev"));
	if (send(fd, &req, req.n.nlmsg_len, 0) < 0 ||
	    recv(fd, buffer, sizeof(buffer), 0) < (int)sizeof(*n) ||
	    n->nlmsg_type != GENL_ID_CTRL)
		return -1;
	left = NLMSG_PAYLOAD(n, GENL_HDRLEN);
	for (; RTA_OK(rta, left); rta = RTA_NEXT(rta, left))
		if (rta->rta_type == CTRL_ATTR_FAMILY_ID)
			return *(__u16 *)RTA_DATA(rta);
	return -1;
}

static int netdev(int fd, int family, int cmd)
{
	const struct request req = {
		.n.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
		.n.nlmsg_type = family,
		.n.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		.g.cmd = cmd,
		.g.version = 1,
	};

	return dump(fd, &req);
}

static int links(void)
{
	struct request req = {
		.n.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)),
		.n.nlmsg_type = RTM_GETLINK,
		.n.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
	};
	__u32 mask = RTEXT_FILTER_SKIP_STATS;
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), count;

	add_attr(&req, IFLA_EXT_MASK, &mask, sizeof(mask));
	count = dump(fd, &req);
	close(fd);
	return count;
}

int main(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
	int devices = links(), family = get_family(fd), napis, queues;

	if (devices < 0 || family < 0)
		return 1;
	napis = netdev(fd, family, NAPI_GET);
	queues = netdev(fd, family, QUEUE_GET);
	printf("%d links, %d NAPIs, %d queues\n", devices, napis, queues);
	return napis < 0 || queues < 0;
}
