// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * openrr - an open-loop client: requests at a fixed period, whatever comes back
 *
 *   openrr --to IPv4 --port N --period-us N --ms N [--delay-us N] [--warm-ms N]
 *          [--device IF --peer-mac MAC] [--wait block|poll|poller]
 *          [--busy-us N] [--cpu N] [--sender-cpu N] [--poller-cpu N]
 *          [--nice N] [--sender-fifo PRIORITY]
 *
 * A thread of its own sends a request every period with the time in it; the
 * main thread receives the answers (from any UDP echo on the same port), takes
 * the round trip and then works for --delay-us, as an application would, during
 * which it receives nothing.  With --device it does so by AF_XDP in copy mode,
 * else by a UDP socket.
 *
 * How the main thread waits: `block` sleeps until there is an answer; `poll`
 * polls the NIC itself by recvfrom with SO_BUSY_POLL; `poller` blocks while a
 * third thread calls recvfrom with SO_BUSY_POLL all the time.
 *
 * Prints JSON: requests sent and answered that were sent after --warm-ms, the
 * sends given up, percentiles of the round trips in nanoseconds, and how many
 * recvfrom calls of `poll` lasted 2^i to 2^(i+1) nanoseconds.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include "xsk.h"

#define MAX_SAMPLES	10000000LL
#define PAYLOAD		64
#define BUCKETS		40
#define DRAIN_NS	300000000LL	/* answers that are still on their way */
#define LOOK_NS		50000000LL	/* a blocked receiver looks at the clock */
#define POLL_BUDGET	8

enum wait { WAIT_BLOCK, WAIT_POLL, WAIT_POLLER };

struct request {
	uint64_t number;
	int64_t sent_ns;
};

struct client {
	struct sockaddr_in to;
	const char *device;
	uint8_t peer_mac[ETH_ALEN];
	int64_t period_ns, delay_ns, length_ns, warm_ns;
	enum wait wait;
	int busy_us, cpu, sender_cpu, poller_cpu, nice, sender_fifo;

	struct xsk xsk;			/* with a device, else: */
	int fd;				/* of either */
	int64_t start_ns;
	int64_t *rtt;
	long long capacity, sent, given_up, received;
	long long recv_log2[BUCKETS];
	atomic_bool over;
};

/* Of the calling thread. */
static void be_nice(int cpu, int nice)
{
	if (cpu >= 0)
		pin(cpu);
	if (nice && setpriority(PRIO_PROCESS, gettid(), nice))
		die("nice %d: %s", nice, strerror(errno));
}

static bool counted(const struct client *c, int64_t sent_ns)
{
	return sent_ns >= c->start_ns + c->warm_ns;
}

static bool send_one(struct client *c, const uint8_t *payload)
{
	if (c->device)
		return xsk_send(&c->xsk, payload, PAYLOAD);
	if (send(c->fd, payload, PAYLOAD, MSG_DONTWAIT) == PAYLOAD)
		return true;
	if (errno != EAGAIN && errno != ENOBUFS && errno != ECONNREFUSED)
		die("send: %s", strerror(errno));
	return false;
}

/* Above the receiver, which may share its CPU: the load must not depend on it. */
static void *sender(void *arg)
{
	struct client *c = arg;
	uint8_t payload[PAYLOAD] = { 0 };
	struct request request = { 0 };
	struct sched_param param = { .sched_priority = c->sender_fifo };

	be_nice(c->sender_cpu >= 0 ? c->sender_cpu : c->cpu, 0);
	if (c->sender_fifo && sched_setscheduler(0, SCHED_FIFO, &param))
		die("SCHED_FIFO %d: %s", c->sender_fifo, strerror(errno));
	for (int64_t due = c->start_ns; due < c->start_ns + c->length_ns;
	     due += c->period_ns) {
		bool done;

		sleep_until(due);
		request.number++;
		request.sent_ns = now_ns(CLOCK_MONOTONIC);
		memcpy(payload, &request, sizeof(request));
		done = send_one(c, payload);
		if (counted(c, request.sent_ns))
			*(done ? &c->sent : &c->given_up) += 1;
	}
	return NULL;
}

/* Has the kernel poll the NIC; what arrives is left for the main thread. */
static void *poller(void *arg)
{
	struct client *c = arg;
	int flags = MSG_DONTWAIT | (c->device ? 0 : MSG_PEEK);
	uint8_t byte;

	be_nice(c->poller_cpu, c->nice);
	while (!c->over)
		recv(c->fd, &byte, c->device ? 0 : 1, flags);
	return NULL;
}

static void note_recv(struct client *c, int64_t took_ns)
{
	int bucket = took_ns > 0 ? 63 - __builtin_clzll(took_ns) : 0;

	c->recv_log2[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

/* recvfrom as --wait has it; -1 when nothing came. */
static ssize_t timed_recv(struct client *c, void *buffer, size_t size, int flags)
{
	int64_t before;
	ssize_t n;

	if (c->wait != WAIT_POLL)
		return recv(c->fd, buffer, size, flags);
	before = now_ns(CLOCK_MONOTONIC);
	n = recv(c->fd, buffer, size, flags);
	note_recv(c, now_ns(CLOCK_MONOTONIC) - before);
	return n;
}

static bool receive_udp(struct client *c, struct request *request)
{
	uint8_t buffer[PAYLOAD];

	if (timed_recv(c, buffer, sizeof(buffer), 0) != PAYLOAD)
		return false;
	memcpy(request, buffer, sizeof(*request));
	return true;
}

static bool receive_xsk(struct client *c, struct request *request)
{
	struct pollfd pfd = { .fd = c->fd, .events = POLLIN };
	const struct xdp_desc *desc = xsk_peek(&c->xsk);

	if (!desc) {
		if (c->wait == WAIT_POLL)
			timed_recv(c, NULL, 0, MSG_DONTWAIT);
		else
			poll(&pfd, 1, LOOK_NS / 1000000);
		desc = xsk_peek(&c->xsk);
	}
	if (!desc)
		return false;
	memcpy(request, c->xsk.umem + desc->addr + HEADERS, sizeof(*request));
	xsk_take(&c->xsk, desc);
	return true;
}

static void work_until(int64_t end_ns)
{
	while (now_ns(CLOCK_MONOTONIC) < end_ns)
		;
}

static void receive_all(struct client *c)
{
	int64_t end = c->start_ns + c->length_ns + DRAIN_NS;
	struct request request;
	int64_t now;

	while ((now = now_ns(CLOCK_MONOTONIC)) < end) {
		if (!(c->device ? receive_xsk : receive_udp)(c, &request))
			continue;
		now = now_ns(CLOCK_MONOTONIC);
		/* No work before: a queue from the cold start would last for long. */
		if (!counted(c, request.sent_ns) || c->received == c->capacity)
			continue;
		c->rtt[c->received++] = now - request.sent_ns;
		work_until(now + c->delay_ns);
	}
}

static void set_option(int fd, int name, int value, const char *what)
{
	if (setsockopt(fd, SOL_SOCKET, name, &value, sizeof(value)))
		die("%s %d: %s", what, value, strerror(errno));
}

static void open_udp(struct client *c)
{
	struct timeval look = { .tv_usec = LOOK_NS / 1000 };

	c->fd = link_local_udp();
	if (connect(c->fd, (struct sockaddr *)&c->to, sizeof(c->to)))
		die("connect: %s", strerror(errno));
	if (setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look)))
		die("SO_RCVTIMEO: %s", strerror(errno));
}

static void open_client(struct client *c)
{
	if (c->device) {
		xsk_open(&c->xsk, c->device, c->peer_mac, &c->to, PAYLOAD);
		c->fd = c->xsk.fd;
	} else {
		open_udp(c);
	}
	if (c->wait == WAIT_BLOCK)
		return;
	set_option(c->fd, SO_PREFER_BUSY_POLL, 1, "SO_PREFER_BUSY_POLL");
	set_option(c->fd, SO_BUSY_POLL_BUDGET, POLL_BUDGET, "SO_BUSY_POLL_BUDGET");
	set_option(c->fd, SO_BUSY_POLL, c->busy_us, "SO_BUSY_POLL");
}

static pthread_t spawn(void *(*run)(void *), struct client *c)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, run, c);

	if (error)
		die("pthread_create: %s", strerror(error));
	return thread;
}

static void run(struct client *c)
{
	bool own_poller = c->wait == WAIT_POLLER;
	pthread_t threads[2];

	if (c->sender_fifo && mlockall(MCL_CURRENT | MCL_FUTURE))
		die("mlockall: %s", strerror(errno));
	c->start_ns = now_ns(CLOCK_MONOTONIC) + 10000000;
	threads[0] = spawn(sender, c);
	if (own_poller)
		threads[1] = spawn(poller, c);
	be_nice(c->cpu, c->nice);
	receive_all(c);
	c->over = true;
	for (int i = 0; i <= own_poller; i++)
		pthread_join(threads[i], NULL);
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void print_result(struct client *c)
{
	static const int percentiles[] = { 5, 50, 95, 99 };
	int last = BUCKETS;

	qsort(c->rtt, c->received, sizeof(*c->rtt), ascending);
	printf("{\"sent\": %lld, \"received\": %lld, \"given_up\": %lld, \"xdp\": \"%s\", \"rtt_ns\": {",
	       c->sent, c->received, c->given_up, c->device ? c->xsk.attached : "");
	for (int i = 0; c->received && i < 4; i++)
		printf("%s\"p%d\": %lld", i ? ", " : "", percentiles[i],
		       (long long)c->rtt[(c->received - 1) * percentiles[i] / 100]);
	while (last && !c->recv_log2[last - 1])
		last--;
	printf("}, \"recv_log2\": [");
	for (int i = 0; i < last; i++)
		printf("%s%lld", i ? ", " : "", c->recv_log2[i]);
	puts("]}");
}

static void parse_mac(const char *text, uint8_t *mac)
{
	char rest;

	if (sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%c", &mac[0], &mac[1],
		   &mac[2], &mac[3], &mac[4], &mac[5], &rest) != 6)
		die("--peer-mac: '%s' is not a MAC address", text);
}

static enum wait parse_wait(const char *text)
{
	static const char *const names[] = { "block", "poll", "poller" };

	for (int i = 0; i < 3; i++)
		if (!strcmp(text, names[i]))
			return i;
	die("--wait: '%s' is none of block, poll, poller", text);
}

static void usage(void)
{
	fputs("usage: openrr --to IPv4 --port N --period-us N --ms N [--delay-us N]\n"
	      "              [--warm-ms N] [--device IF --peer-mac MAC]\n"
	      "              [--wait block|poll|poller] [--busy-us N] [--cpu N]\n"
	      "              [--sender-cpu N] [--poller-cpu N] [--nice N]\n"
	      "              [--sender-fifo PRIORITY]\n", stderr);
	exit(2);
}

static void parse(struct client *c, int argc, char **argv)
{
	static const struct option options[] = {
		{ "to", required_argument, NULL, 't' },
		{ "port", required_argument, NULL, 'p' },
		{ "period-us", required_argument, NULL, 'P' },
		{ "ms", required_argument, NULL, 'm' },
		{ "delay-us", required_argument, NULL, 'd' },
		{ "warm-ms", required_argument, NULL, 'W' },
		{ "device", required_argument, NULL, 'i' },
		{ "peer-mac", required_argument, NULL, 'M' },
		{ "wait", required_argument, NULL, 'w' },
		{ "busy-us", required_argument, NULL, 'B' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "sender-cpu", required_argument, NULL, 's' },
		{ "poller-cpu", required_argument, NULL, 'C' },
		{ "nice", required_argument, NULL, 'n' },
		{ "sender-fifo", required_argument, NULL, 'f' },
		{ 0 }
	};
	int opt, port = 0, mac = 0;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 't': c->to = lab_address(optarg); break;
		case 'p': port = number("--port", optarg, 1, 65535); break;
		case 'P':
			c->period_ns = 1000 * number("--period-us", optarg, 1, 10000000);
			break;
		case 'm':
			c->length_ns = 1000000 * number("--ms", optarg, 1,
							MAX_SECONDS * 1000);
			break;
		case 'd':
			c->delay_ns = 1000 * number("--delay-us", optarg, 0, 10000000);
			break;
		case 'W':
			c->warm_ns = 1000000 * number("--warm-ms", optarg, 0,
						      MAX_SECONDS * 1000);
			break;
		case 'i': c->device = optarg; break;
		case 'M': parse_mac(optarg, c->peer_mac); mac = 1; break;
		case 'w': c->wait = parse_wait(optarg); break;
		case 'B': c->busy_us = number("--busy-us", optarg, 1, 10000000); break;
		case 'c': c->cpu = number("--cpu", optarg, 0, CPU_SETSIZE - 1); break;
		case 's':
			c->sender_cpu = number("--sender-cpu", optarg, 0,
					       CPU_SETSIZE - 1);
			break;
		case 'C':
			c->poller_cpu = number("--poller-cpu", optarg, 0,
					       CPU_SETSIZE - 1);
			break;
		case 'n': c->nice = number("--nice", optarg, -20, 19); break;
		case 'f':
			c->sender_fifo = number("--sender-fifo", optarg, 1, 90);
			break;
		default: usage();
		}
	}
	if (optind != argc || !port || !c->to.sin_family || !c->period_ns ||
	    c->length_ns <= c->warm_ns || !!c->device != mac)
		usage();
	c->to.sin_port = htons(port);
}

int main(int argc, char **argv)
{
	static struct client c = {
		.busy_us = 400, .cpu = -1, .sender_cpu = -1, .poller_cpu = -1,
	};

	tool_name = "openrr";
	parse(&c, argc, argv);
	c.capacity = c.length_ns / c.period_ns + 1;
	if (c.capacity > MAX_SAMPLES)
		die("%lld requests are more than %lld", c.capacity, MAX_SAMPLES);
	c.rtt = calloc(c.capacity, sizeof(*c.rtt));
	if (!c.rtt)
		die("no memory for %lld samples", c.capacity);
	open_client(&c);
	run(&c);
	print_result(&c);
	return 0;
}
