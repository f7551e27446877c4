/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzz what ip/ipnapi.c makes of the kernel's replies.
 *
 * Usage: fuzz-napi [INPUTS [SEED]]
 *
 * Replies of the shapes that the kernel sends are cut short, lengthened, get
 * unknown attributes, attributes of other lengths, and random bytes. Each is
 * parsed from a heap block of exactly its size, so that AddressSanitizer sees
 * a read past its end. Every ROUND inputs the tables are sorted and printed.
 * One in eight inputs goes through libnetlink's dump loop instead, with an end
 * that is a done, an error, or either cut short.
 *
 * Built with the tree's own flags and libraries; includes the file tested.
 */

#include "ipnapi.c"

#include <sys/socket.h>

#define FAMILY	30
#define ROUND	512

/* What ip.c has. */
int show_details = 2, oneline, json, timestamp, echo_request, brief;
int preferred_family;
struct rtnl_handle rth = { .fd = -1 };

static __u64 state;

/* The packet that recvmsg() gives, once. */
static char packet[4096] __attribute__((aligned(8)));
static size_t packet_len;

/* In place of libc's: a reader that waits for more would wait for ever. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	size_t len = packet_len;

	if (fd < 0 || !len)
		abort();
	memset(msg->msg_name, 0, msg->msg_namelen);
	msg->msg_flags = 0;
	if (flags & MSG_PEEK)
		return len;
	if (msg->msg_iov->iov_len < len)
		abort();
	memcpy(msg->msg_iov->iov_base, packet, len);
	packet_len = 0;
	return len;
}

static __u32 rnd(__u32 below)
{
	/* xorshift64*: the same inputs for the same seed, everywhere */
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (__u32)((state * 0x2545F4914F6CDD1DULL) >> 32) % below;
}

static void put_attr(struct nlmsghdr *n, int max)
{
	__u8 data[32];
	int len, type, i;

	type = rnd(4) ? (int)rnd(NETDEV_ATTR_MAX + 3) : (int)rnd(65536);
	len = rnd(3) ? 4 : (int)rnd(sizeof(data));
	for (i = 0; i < len; i++)
		data[i] = rnd(4) ? 0 : rnd(256);
	data[0] = rnd(4) ? rnd(5) : rnd(256);
	if (NLMSG_ALIGN(n->nlmsg_len) + RTA_ALIGN(RTA_LENGTH(len)) <=
	    (__u32)max)
		addattr_l(n, max, type, data, len);
}

/* What both NAPIs and queues must have; few values, so that queues match. */
static void put_needed(struct nlmsghdr *n, int max)
{
	int type;

	for (type = 1; type <= 4; type++)
		if (rnd(16))
			addattr32(n, max, type, rnd(5));
	if (rnd(2))
		addattr32(n, max, NAPI_THREADED, rnd(4));
}

/* A reply; its length says how much of buf is valid. */
static __u32 make_reply(struct nlmsghdr *n, int max, int type)
{
	__u32 i, attrs = rnd(3) ? 0 : rnd(12), len;

	memset(n, 0, max);
	n->nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN);
	n->nlmsg_type = rnd(16) ? type : (int)rnd(65536);
	if (rnd(8))
		put_needed(n, max);
	for (i = 0; i < attrs; i++)
		put_attr(n, max);

	len = n->nlmsg_len;
	if (!rnd(3)) {			/* cut short; the header stays */
		len = NLMSG_HDRLEN + rnd(len - NLMSG_HDRLEN + 1);
		n->nlmsg_len = len;
	}
	for (i = rnd(8) ? 0 : rnd(8); i && len > NLMSG_HDRLEN; i--)
		((__u8 *)n)[NLMSG_HDRLEN + rnd(len - NLMSG_HDRLEN)] = rnd(256);
	return len;
}

static void parse_alone(int kind)
{
	char buf[512] __attribute__((aligned(8)));
	__u32 len = make_reply((void *)buf, sizeof(buf),
			       kind == 2 ? GENL_ID_CTRL : FAMILY);
	struct nlmsghdr *exact = malloc(len);

	memcpy(exact, buf, len);
	if (kind == 0)
		store_obj(exact, &napis);
	else if (kind == 1)
		store_obj(exact, &queues);
	else
		parse_family(exact);
	free(exact);
}

/* The end of a dump: NLMSG_DONE or NLMSG_ERROR, at times too short. */
static __u32 make_end(struct nlmsghdr *n)
{
	static const int errs[] = { 0, -ENODEV, -EOPNOTSUPP, -EINVAL, 5 };
	int err = errs[rnd(5)];

	memset(n, 0, 64);
	n->nlmsg_type = rnd(2) ? NLMSG_DONE : NLMSG_ERROR;
	n->nlmsg_len = n->nlmsg_type == NLMSG_DONE ?
		NLMSG_LENGTH(sizeof(int)) :
		NLMSG_LENGTH(sizeof(struct nlmsgerr));
	memcpy(NLMSG_DATA(n), &err, sizeof(err));
	if (!rnd(8))
		n->nlmsg_len = NLMSG_HDRLEN + 4 * rnd(2);
	return NLMSG_ALIGN(n->nlmsg_len);
}

/* libnetlink ends the process at bytes left over: whole messages, only. */
static void parse_dump(struct netdev_table *tab)
{
	__u32 used = 0, count = rnd(6);
	struct nlmsghdr *n;
	int err = 0;

	while (count--) {
		n = (void *)(packet + used);
		used += NLMSG_ALIGN(make_reply(n, 512, FAMILY));
		n->nlmsg_seq = netdev_rth.dump;
		/* these two end the dump, which is for make_end() to do */
		if (n->nlmsg_type == NLMSG_DONE || n->nlmsg_type == NLMSG_ERROR)
			n->nlmsg_type = FAMILY;
	}
	n = (void *)(packet + used);
	used += make_end(n);
	n->nlmsg_seq = netdev_rth.dump;
	packet_len = used;
	rtnl_dump_filter_errhndlr(&netdev_rth, store_obj, tab, dump_error,
				  &err);
}

static void show(struct netdev_table *tab)
{
	size_t i;

	if (!tab->sorted)
		qsort(tab->obj, tab->len, sizeof(*tab->obj), cmp_obj);
	for (i = 1; i < tab->len; i++)
		if (cmp_obj(&tab->obj[i - 1], &tab->obj[i]) > 0)
			abort();
	tab->line = cmdlineno;
	tab->ifindex = 0;
}

static void print_all(void)
{
	int ifindex;

	show(&napis);
	show(&queues);
	new_json_obj(rnd(2));
	for (ifindex = 0; ifindex < 6; ifindex++) {
		open_json_object(NULL);
		iplink_print_threaded(ifindex, 0);
		iplink_print_napis(ifindex, 0);
		close_json_object();
	}
	delete_json_obj();
	napis.len = queues.len = 0;
	napis.sorted = queues.sorted = true;
}

int main(int argc, char **argv)
{
	unsigned long i, inputs = argc > 1 ? strtoul(argv[1], NULL, 0) : 1000000;
	unsigned long seed = argc > 2 ? strtoul(argv[2], NULL, 0) : 1;
	unsigned long stored = 0;

	_SL_ = "\n";
	state = seed * 0x9E3779B97F4A7C15ULL | 1;
	netdev_family = FAMILY;
	napis.sorted = queues.sorted = true;
	netdev_rth.fd = 0;
	netdev_rth.flags = RTNL_HANDLE_F_SUPPRESS_NLERR;

	for (i = 1; i <= inputs; i++) {
		netdev_rth.dump++;
		if (rnd(8))
			parse_alone(rnd(3));
		else
			parse_dump(rnd(2) ? &napis : &queues);
		if (i % ROUND == 0 || i == inputs) {
			stored += napis.len + queues.len;
			print_all();
		}
	}

	free(napis.obj);
	free(queues.obj);
	fprintf(stderr, "\nfuzz-napi: %lu inputs, seed %lu, %lu objects stored\n",
		inputs, seed, stored);
	return 0;
}
