// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Fuzzes what netlink/napi.c of the patched ethtool does with replies.
 *
 * usage: fuzz-napi INPUTS SEED
 *
 * Well-formed replies are composed, then damaged: cut short, lengthened, bytes
 * changed, attributes of unknown types and odd sizes. Each lies in a buffer of
 * just its padded size, so that AddressSanitizer sees every byte read behind it. What
 * came through is selected from and shown, in text and in JSON in turn.
 */

#include "netlink/napi.c"

#include <fcntl.h>

static uint64_t state;
static unsigned char *input;
static size_t input_len;

static uint32_t rnd(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

/* The socket: what it receives is the input. */

int nlsock_init(struct nl_context *nlctx, struct nl_socket **nlsk, int nl_fam)
{
	*nlsk = calloc(1, sizeof(**nlsk));
	if (!*nlsk)
		return -ENOMEM;
	(*nlsk)->nlctx = nlctx;
	(*nlsk)->nl_fam = nl_fam;
	return 0;
}

void nlsock_done(struct nl_socket *nlsk)
{
	if (nlsk)
		msgbuff_done(&nlsk->msgbuff);
	free(nlsk);
}

ssize_t nlsock_sendmsg(struct nl_socket *nlsk __maybe_unused,
		       struct nl_msg_buff *altbuff __maybe_unused)
{
	return 1;
}

int nlsock_process_reply(struct nl_socket *nlsk __maybe_unused,
			 mnl_cb_t reply_cb, void *data)
{
	return mnl_cb_run(input, input_len, 0, 0, reply_cb, data);
}

int nomsg_reply_cb(const struct nlmsghdr *nlhdr __maybe_unused,
		   void *data __maybe_unused)
{
	return MNL_CB_OK;
}

/* Composing an input */

static void put_attr(struct nlmsghdr *nlhdr, unsigned int cnt)
{
	static const size_t sizes[] = { 0, 1, 2, 3, 4, 4, 4, 4, 8, 8, 12, 20 };
	char payload[20];
	size_t i;

	for (i = 0; i < sizeof(payload); i++)
		payload[i] = rnd(3) ? rnd(8) : rnd(256);
	mnl_attr_put(nlhdr, rnd(cnt + 4), sizes[rnd(ARRAY_SIZE(sizes))],
		     payload);
}

static void compose_genl(struct nlmsghdr *nlhdr, unsigned int cnt)
{
	unsigned int type, more = rnd(4);

	mnl_nlmsg_put_extra_header(nlhdr, GENL_HDRLEN);
	for (type = 1; type < cnt; type++)
		if (rnd(16))
			mnl_attr_put_u32(nlhdr, type, rnd(4));
	while (more--)
		put_attr(nlhdr, cnt);
}

static void compose_link(struct nlmsghdr *nlhdr)
{
	struct ifinfomsg *ifinfo;

	nlhdr->nlmsg_type = rnd(16) ? RTM_NEWLINK : rnd(32);
	ifinfo = mnl_nlmsg_put_extra_header(nlhdr, sizeof(*ifinfo));
	ifinfo->ifi_index = rnd(4);
	ifinfo->ifi_flags = rnd(2) ? IFF_UP : 0;
	mnl_attr_put_strz(nlhdr, IFLA_IFNAME,
			  rnd(8) ? "eth0" : "a-name-that-is-too-long");
	put_attr(nlhdr, IFLA_EXT_MASK);
}

static void compose_family(struct nlmsghdr *nlhdr)
{
	struct nlattr *ops, *op;
	unsigned int i, count;

	mnl_nlmsg_put_extra_header(nlhdr, GENL_HDRLEN);
	mnl_attr_put_u16(nlhdr, CTRL_ATTR_FAMILY_ID, rnd(65536));
	ops = mnl_attr_nest_start(nlhdr, CTRL_ATTR_OPS);
	count = rnd(4);
	for (i = 0; i < count; i++) {
		op = mnl_attr_nest_start(nlhdr, i);
		mnl_attr_put_u32(nlhdr, CTRL_ATTR_OP_ID, rnd(40));
		put_attr(nlhdr, CTRL_ATTR_OP_MAX);
		mnl_attr_nest_end(nlhdr, op);
	}
	mnl_attr_nest_end(nlhdr, ops);
	put_attr(nlhdr, CTRL_ATTR_MAX);
}

static void compose_error(struct nlmsghdr *nlhdr)
{
	struct nlmsgerr *nlerr;

	nlhdr->nlmsg_type = NLMSG_ERROR;
	nlhdr->nlmsg_flags = rnd(1024);
	nlerr = mnl_nlmsg_put_extra_header(nlhdr, sizeof(*nlerr));
	nlerr->error = -(int)rnd(100);
	nlerr->msg.nlmsg_len = rnd(4) ? NLMSG_HDRLEN : rnd(200);
	mnl_attr_put_strz(nlhdr, NLMSGERR_ATTR_MSG, "kernel's words");
	put_attr(nlhdr, NLMSGERR_ATTR_MAX);
}

static size_t compose_one(char *buff, unsigned int kind)
{
	struct nlmsghdr *nlhdr;

	memset(buff, '\0', NLMSG_HDRLEN);
	nlhdr = mnl_nlmsg_put_header(buff);
	nlhdr->nlmsg_type = 30;
	switch (kind) {
	case 0:
		compose_genl(nlhdr, NAPI_A_CNT);
		break;
	case 1:
		compose_genl(nlhdr, NAPI_A_QUEUE_CNT);
		break;
	case 2:
		compose_link(nlhdr);
		break;
	case 3:
		compose_family(nlhdr);
		break;
	default:
		compose_error(nlhdr);
	}
	return NLMSG_ALIGN(nlhdr->nlmsg_len);
}

/* libmnl takes a length of 2 GB and more for a negative one, whatever the
 * callback does; no kernel sends that much at once, so leave it out.
 */
static void limit_lengths(char *buff, size_t len)
{
	size_t offset = 0;

	while (offset + NLMSG_HDRLEN <= len) {
		struct nlmsghdr *nlhdr = (struct nlmsghdr *)(buff + offset);

		nlhdr->nlmsg_len &= INT_MAX;
		if (nlhdr->nlmsg_len < NLMSG_HDRLEN)
			break;
		offset += NLMSG_ALIGN(nlhdr->nlmsg_len);
	}
}

static void compose(unsigned int kind)
{
	char buff[4096] __attribute__((aligned(8))) = "";
	size_t len = 0, damage;
	unsigned int count;

	for (count = 1 + rnd(3); count; count--)
		len += compose_one(buff + len, kind);
	if (rnd(4) == 0)
		len = rnd(len + 16);
	for (damage = rnd(2) ? rnd(4) : 0; damage && len; damage--)
		buff[rnd(len)] = rnd(2) ? rnd(256) : rnd(20);
	limit_lengths(buff, len);
	/* libmnl takes messages to be padded, as those of the kernel are */
	input = calloc(1, len ? NLMSG_ALIGN(len) : 1);
	if (!input)
		abort();
	memcpy(input, buff, len);
	input_len = len;
}

/* Feeding it */

static void feed_words(struct napi_ctx *nctx)
{
	struct nl_msg_buff *msgbuff = &nctx->nlsk->msgbuff;
	const char *words;

	if (input_len < NLMSG_HDRLEN)
		return;
	/* the buffer of a socket is never as short as the message in it */
	msgbuff_done(msgbuff);
	msgbuff->buff = (char *)input;
	msgbuff->size = input_len;
	words = napi_kernel_words(nctx, -EINVAL);
	if (strlen(words) > input_len + 64)
		abort();
	msgbuff_init(msgbuff);
}

static size_t feed(struct napi_ctx *nctx, unsigned int kind)
{
	static const mnl_cb_t callbacks[] = {
		napi_get_cb, napi_queue_cb, napi_link_cb, napi_family_cb,
	};

	compose(kind);
	if (kind < ARRAY_SIZE(callbacks))
		napi_request(nctx, callbacks[kind]);
	else
		feed_words(nctx);
	free(input);
	input = NULL;
	return nctx->napis.count + nctx->queues.count + nctx->links.count;
}

static size_t round_of_replies(struct napi_ctx *nctx, unsigned long *left)
{
	struct napi_inst *napis;
	size_t stored = 0, i;
	unsigned int kind;

	for (kind = 0; kind < 5 && *left; kind++, --*left)
		stored = feed(nctx, kind);
	napi_array_sort(&nctx->links, napi_cmp_links);
	napi_array_sort(&nctx->napis, napi_cmp_napis);
	napi_array_sort(&nctx->queues, napi_cmp_queues);
	nctx->select = NAPI_SEL_ALL + rnd(5);
	nctx->number = rnd(4);
	for (i = 0; i < ARRAY_SIZE(nctx->mask); i++)
		nctx->mask[i] = i ? 0 : 1 + rnd(3);
	napi_select(nctx, nctx->links.count ? nctx->links.elems : NULL);
	napis = nctx->napis.elems;
	for (i = 0; rnd(2) && i < nctx->napis.count; i++)
		napis[i].selected = true;
	napi_show(nctx);
	return stored;
}

int main(int argc, char **argv)
{
	struct cmd_context ctx = {};
	struct nl_context nlctx = { .ctx = &ctx, .cmd = "--show-napi" };
	unsigned long inputs, left;
	size_t stored = 0;
	FILE *report;

	if (argc != 3)
		return 2;
	left = inputs = strtoul(argv[1], NULL, 10);
	state = 0x9e3779b97f4a7c15ULL ^ strtoul(argv[2], NULL, 10);
	/* what is shown and said is not looked at here; reports go to fd 2 */
	report = fdopen(dup(1), "w");
	if (!report || !freopen("/dev/null", "w", stdout))
		return 2;
	stderr = fopen("/dev/null", "w");
	while (left) {
		struct napi_ctx nctx = {
			.nlctx		= &nlctx,
			.links.size	= sizeof(struct napi_link),
			.napis.size	= sizeof(struct napi_inst),
			.queues.size	= sizeof(struct napi_queue),
		};

		ctx.json = left & 1;
		if (napi_open(&nctx, NETLINK_GENERIC) < 0)
			return 2;
		stored += round_of_replies(&nctx, &left);
		nlsock_done(nctx.nlsk);
		free(nctx.links.elems);
		free(nctx.napis.elems);
		free(nctx.queues.elems);
	}
	fprintf(report, "fuzz-napi: %lu inputs, seed %s, %zu objects\n", inputs,
		argv[2], stored);
	return fclose(report) ? 2 : 0;
}
