// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * udpflood - offers UDP messages on N flows, paced or as fast as the host can
 *
 * Flow i goes from its own socket (own source port) to port PORT + i, so the
 * receiver's hash and its processes see N distinct flows; with --from-port the
 * source ports are FROM + i, and a flow lands on the same queue in every run.
 * Both time and count are bounded.  Prints one JSON object: what was handed to
 * the kernel and in how many seconds; what the link or the receiver then
 * dropped is for the receiving side to say.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sched.h>
#include "common.h"

#define MAX_BATCH	32
#define SLICE_NS	500000LL	/* pacing step: bursts stay under 0.5 ms */
#define MAX_PACKETS	1000000000LL
#define MAX_FLOOD_SECONDS	10800

struct flood {
	struct sockaddr_in to;
	int flows, size;
	long long rate, max_packets;	/* rate 0: no pacing */
	int64_t duration_ns;
	int batch;
	int fd[MAX_FLOWS];
	struct mmsghdr msgs[MAX_BATCH];
	struct iovec iov;
	long long sent, failed;
	int next;			/* flow whose turn it is */
};

static void bind_port(int fd, int port)
{
	struct sockaddr_in sa = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
	};

	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("bind port %d: %s", port, strerror(errno));
}

static void open_flows(struct flood *f, int port, int from_port)
{
	for (int i = 0; i < f->flows; i++) {
		f->to.sin_port = htons(port + i);
		f->fd[i] = link_local_udp();
		if (from_port)
			bind_port(f->fd[i], from_port + i);
		if (connect(f->fd[i], (struct sockaddr *)&f->to, sizeof(f->to)))
			die("connect: %s", strerror(errno));
	}
	f->iov.iov_base = calloc(1, f->size);
	f->iov.iov_len = f->size;
	if (!f->iov.iov_base)
		die("no memory for a message of %d bytes", f->size);
	for (int i = 0; i < MAX_BATCH; i++) {
		f->msgs[i].msg_hdr.msg_iov = &f->iov;
		f->msgs[i].msg_hdr.msg_iovlen = 1;
	}
}

/*
 * One turn of one flow.  ECONNREFUSED is the answer to an earlier message
 * (the receiver was not there yet) and ENOBUFS a full queue: both are counted
 * as failed, all other errors mean that the set-up is wrong.
 */
static void send_turn(struct flood *f, int count)
{
	int n = sendmmsg(f->fd[f->next], f->msgs, count, 0);

	if (n >= 0)
		f->sent += n;
	else if (errno == ECONNREFUSED || errno == ENOBUFS || errno == EAGAIN)
		f->failed++;
	else
		die("sendmmsg: %s", strerror(errno));
	f->next = (f->next + 1) % f->flows;
}

static long long minll(long long a, long long b)
{
	return a < b ? a : b;
}

static int64_t run_full(struct flood *f, int64_t start)
{
	int64_t now = start;

	while (now - start < f->duration_ns && f->sent < f->max_packets) {
		send_turn(f, minll(f->batch, f->max_packets - f->sent));
		now = now_ns(CLOCK_MONOTONIC);
	}
	return now;
}

/*
 * Owed packets are those of the time gone by.  A sender that was off its CPU
 * for long must not make up for it in one burst, which would be a full flood:
 * what is more than 20 ms old is given up, and the JSON shows the lower rate.
 */
static int64_t run_paced(struct flood *f, int64_t start)
{
	int64_t now = start, wake = start;
	const double per_ns = (double)f->rate / NSEC;
	double owed = 0, cap = per_ns * 20000000 + 1;
	int64_t last = start;

	while (now - start < f->duration_ns && f->sent < f->max_packets) {
		owed += (now - last) * per_ns;
		if (owed > cap)
			owed = cap;
		last = now;
		while (owed >= 1) {
			long long before = f->sent + f->failed;

			send_turn(f, minll((long long)owed, f->batch));
			owed -= f->sent + f->failed - before;
		}
		wake += SLICE_NS;
		now = now_ns(CLOCK_MONOTONIC);
		if (wake > now) {
			sleep_until(wake);
			now = now_ns(CLOCK_MONOTONIC);
		} else {
			wake = now;
		}
	}
	return now;
}

static void usage(void)
{
	fputs("usage: udpflood --to IPv4 --port N --flows N --size BYTES\n"
	      "                [--from-port N] [--rate PPS] [--batch N]\n"
	      "                [--max-packets N] --ms N\n",
	      stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "to", required_argument, NULL, 't' },
		{ "port", required_argument, NULL, 'p' },
		{ "flows", required_argument, NULL, 'f' },
		{ "size", required_argument, NULL, 's' },
		{ "rate", required_argument, NULL, 'r' },
		{ "batch", required_argument, NULL, 'b' },
		{ "from-port", required_argument, NULL, 'F' },
		{ "max-packets", required_argument, NULL, 'm' },
		{ "ms", required_argument, NULL, 'd' },
		{ 0 }
	};
	static struct flood f = { .batch = 16, .max_packets = MAX_PACKETS };
	int opt, port = 0, from_port = 0;
	int64_t start, end;

	tool_name = "udpflood";
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 't': f.to = lab_address(optarg); break;
		case 'p': port = number("--port", optarg, 1, 65535); break;
		case 'f': f.flows = number("--flows", optarg, 1, MAX_FLOWS); break;
		case 's': f.size = number("--size", optarg, 1, MAX_MESSAGE); break;
		case 'r': f.rate = number("--rate", optarg, 0, 100000000); break;
		case 'b': f.batch = number("--batch", optarg, 1, MAX_BATCH); break;
		case 'F':
			from_port = number("--from-port", optarg, 1, 65535);
			break;
		case 'm':
			f.max_packets = number("--max-packets", optarg, 1, MAX_PACKETS);
			break;
		case 'd':
			f.duration_ns = number("--ms", optarg, 1, MAX_FLOOD_SECONDS * 1000LL)
					* 1000000;
			break;
		default: usage();
		}
	}
	if (optind != argc || !f.to.sin_family || !port || !f.flows || !f.size ||
	    !f.duration_ns || port + f.flows > 65536 ||
	    from_port + f.flows > 65536)
		usage();
	open_flows(&f, port, from_port);
	start = now_ns(CLOCK_MONOTONIC);
	end = f.rate ? run_paced(&f, start) : run_full(&f, start);
	printf("{\"flows\": %d, \"size\": %d, \"rate\": %lld, \"sent\": %lld, "
	       "\"failed\": %lld, \"seconds\": %.6f}\n",
	       f.flows, f.size, f.rate, f.sent, f.failed,
	       (double)(end - start) / NSEC);
	return 0;
}
