// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * udpecho - the answering application, and the client that times it
 *
 *   udpecho --serve --port N [--cpu N] [--background FILE]
 *   udpecho --to IPv4 --port N --count N [--size B] [--gap-us N] [--timeout-ms N]
 *
 * The client keeps one request under way: it sends, blocks for the answer, and
 * after --timeout-ms counts the request as lost.  An answer that comes late is
 * told from the awaited one by its sequence number.  It prints the percentiles
 * of the round trips in nanoseconds and the number lost, as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>
#include "common.h"

#define MAX_COUNT	1000000

struct client {
	struct sockaddr_in to;
	int count, size, gap_us, timeout_ms;
	int64_t *rtt;			/* count entries, answered ones first */
	int answered, lost;
};

static void to_background(const char *pid_file)
{
	pid_t pid = fork();
	FILE *out;

	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (pid) {
		out = fopen(pid_file, "w");
		if (!out || fprintf(out, "%d\n", (int)pid) < 0 || fclose(out))
			die("%s: %s", pid_file, strerror(errno));
		_exit(0);
	}
	detach();
}

__attribute__((noreturn))
static void serve(int port, const char *background)
{
	struct sockaddr_in sa = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
	};
	static char buffer[MAX_MESSAGE + 1];
	int fd = link_local_udp();

	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("bind port %d: %s", port, strerror(errno));
	if (background)
		to_background(background);
	for (;;) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);
		ssize_t n = recvfrom(fd, buffer, sizeof(buffer), 0,
				     (struct sockaddr *)&from, &len);

		/* A client that went away (ECONNREFUSED) must not end the service. */
		if (n >= 0)
			sendto(fd, buffer, n, 0, (struct sockaddr *)&from, len);
	}
}

/* True once the answer to `seq` is here; false after the timeout. */
static int await_answer(int fd, uint64_t seq, char *buffer, int64_t give_up)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t left;
	uint64_t got;

	while ((left = give_up - now_ns(CLOCK_MONOTONIC)) > 0) {
		struct timespec ts = { .tv_sec = left / NSEC, .tv_nsec = left % NSEC };

		if (ppoll(&pfd, 1, &ts, NULL) <= 0)
			continue;
		if (recv(fd, buffer, MAX_MESSAGE, 0) < (ssize_t)sizeof(got))
			continue;
		memcpy(&got, buffer, sizeof(got));
		if (got == seq)
			return 1;
	}
	return 0;
}

static void run_client(struct client *c)
{
	static char buffer[MAX_MESSAGE];
	int fd = link_local_udp();

	if (connect(fd, (struct sockaddr *)&c->to, sizeof(c->to)))
		die("connect: %s", strerror(errno));
	for (uint64_t seq = 1; seq <= (uint64_t)c->count; seq++) {
		int64_t sent = now_ns(CLOCK_MONOTONIC);

		memcpy(buffer, &seq, sizeof(seq));
		if (send(fd, buffer, c->size, 0) < 0 && errno != ECONNREFUSED)
			die("send: %s", strerror(errno));
		if (await_answer(fd, seq, buffer, sent + c->timeout_ms * 1000000LL))
			c->rtt[c->answered++] = now_ns(CLOCK_MONOTONIC) - sent;
		else
			c->lost++;
		sleep_until(now_ns(CLOCK_MONOTONIC) + c->gap_us * 1000LL);
	}
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void print_result(struct client *c)
{
	static const int percentiles[] = { 5, 25, 50, 75, 95, 99 };

	qsort(c->rtt, c->answered, sizeof(*c->rtt), ascending);
	printf("{\"answered\": %d, \"lost\": %d, \"rtt_ns\": {", c->answered, c->lost);
	for (int i = 0; c->answered && i < 6; i++)
		printf("%s\"p%d\": %lld", i ? ", " : "", percentiles[i],
		       (long long)c->rtt[(int64_t)(c->answered - 1) *
					 percentiles[i] / 100]);
	puts("}}");
}

static void usage(void)
{
	fputs("usage: udpecho --serve --port N [--cpu N] [--background PIDFILE]\n"
	      "       udpecho --to IPv4 --port N --count N [--size BYTES]\n"
	      "               [--gap-us N] [--timeout-ms N]\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "serve", no_argument, NULL, 'S' },
		{ "to", required_argument, NULL, 't' },
		{ "port", required_argument, NULL, 'p' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "background", required_argument, NULL, 'b' },
		{ "count", required_argument, NULL, 'n' },
		{ "size", required_argument, NULL, 's' },
		{ "gap-us", required_argument, NULL, 'g' },
		{ "timeout-ms", required_argument, NULL, 'T' },
		{ 0 }
	};
	struct client c = { .size = 64, .timeout_ms = 1000 };
	const char *background = NULL;
	int opt, port = 0, serving = 0;

	tool_name = "udpecho";
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 'S': serving = 1; break;
		case 't': c.to = lab_address(optarg); break;
		case 'p': port = number("--port", optarg, 1, 65535); break;
		case 'c': pin(number("--cpu", optarg, 0, CPU_SETSIZE - 1)); break;
		case 'b': background = optarg; break;
		case 'n': c.count = number("--count", optarg, 1, MAX_COUNT); break;
		case 's':
			c.size = number("--size", optarg, sizeof(uint64_t), MAX_MESSAGE);
			break;
		case 'g': c.gap_us = number("--gap-us", optarg, 0, 10000000); break;
		case 'T':
			c.timeout_ms = number("--timeout-ms", optarg, 1, 60000);
			break;
		default: usage();
		}
	}
	if (optind != argc || !port || serving == !!c.to.sin_family ||
	    (!serving && !c.count))
		usage();
	if (serving)
		serve(port, background);
	c.to.sin_port = htons(port);
	c.rtt = calloc(c.count, sizeof(*c.rtt));
	if (!c.rtt)
		die("no memory for %d samples", c.count);
	run_client(&c);
	print_result(&c);
	return 0;
}
