// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * rpc - requests and answers over TCP, one thread a connection, with work
 *
 * In the manner of seed 004's RPC test: CONNECTIONS clients in a closed loop,
 * and a server that does more for each answer than netperf does: it walks a
 * table of its connection's own, which is in the cache of the CPU where it
 * walked it last.
 *
 *   rpc --serve --port P [--table BYTES]
 *   rpc --call ADDRESS --port P --connections N --warm MS --ms MS
 *
 * The server goes to the background once it listens.  The client prints one
 * JSON object: transactions of the MS after those to warm up, and of their
 * times in microseconds the median, the 90th and 99th percentile and the
 * standard deviation.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include "common.h"

#define MESSAGE		64		/* bytes, of request and answer */
#define MAX_TABLE	(1 << 24)
#define MAX_MS		600000
#define MAX_TIMES	(1 << 20)	/* of one connection */
#define LINE		64		/* bytes of a line of the cache */
#define STACK		(64 * 1024)

static struct sockaddr_in address;
static long table_bytes = 32 * 1024;
static int64_t from, until;

struct caller {
	pthread_t thread;
	uint32_t *times;		/* nanoseconds / 100 */
	int count;
};

/* All of a message, or false at its end */
static bool whole(ssize_t (*call)(int, void *, size_t), int fd, char *message)
{
	size_t done = 0;

	while (done < MESSAGE) {
		ssize_t n = call(fd, message + done, MESSAGE - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += n;
	}
	return true;
}

static ssize_t send_some(int fd, void *from_here, size_t size)
{
	return send(fd, from_here, size, MSG_NOSIGNAL);
}

static void start(pthread_t *thread, void *(*work)(void *), void *of)
{
	pthread_attr_t small;

	if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, STACK) ||
	    pthread_create(thread, &small, work, of))
		die("no thread: %s", strerror(errno));
	pthread_attr_destroy(&small);
}

static void without_delay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY: %s", strerror(errno));
}

static void *answer(void *of)
{
	int fd = (int)(intptr_t)of;
	volatile char *table = calloc(1, table_bytes);
	char message[MESSAGE];

	if (!table)
		die("no memory for a table of %ld bytes", table_bytes);
	while (whole(read, fd, message)) {
		for (long at = 0; at < table_bytes; at += LINE)
			table[at] += message[0];
		if (!whole(send_some, fd, message))
			break;
	}
	free((void *)table);
	close(fd);
	return NULL;
}

static void serve(void)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid_t child;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, MAX_FLOWS))
		die("port %d: %s", ntohs(address.sin_port), strerror(errno));
	child = fork();
	if (child < 0)
		die("fork: %s", strerror(errno));
	if (child)
		exit(0);
	detach();
	for (;;) {
		int one_more = accept(fd, NULL, NULL);
		pthread_t thread;

		if (one_more < 0)
			continue;
		without_delay(one_more);
		start(&thread, answer, (void *)(intptr_t)one_more);
		pthread_detach(thread);
	}
}

static void *call(void *of)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct caller *me = of;
	char message[MESSAGE] = "r";

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("connect: %s", strerror(errno));
	without_delay(fd);
	for (int64_t now = now_ns(CLOCK_MONOTONIC); now < until; ) {
		int64_t sent = now;

		if (!whole(send_some, fd, message) || !whole(read, fd, message))
			die("the server closed a connection");
		now = now_ns(CLOCK_MONOTONIC);
		if (sent >= from && now < until && me->count < MAX_TIMES)
			me->times[me->count++] = (now - sent) / 100;
	}
	close(fd);
	return NULL;
}

static int ascending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void tell(const uint32_t *times, long count, int64_t ns)
{
	double mean = 0, squares = 0;

	if (!count)
		die("no answer in time");
	for (long i = 0; i < count; i++)
		mean += times[i] / 10.0 / count;
	for (long i = 0; i < count; i++)
		squares += (times[i] / 10.0 - mean) * (times[i] / 10.0 - mean) / count;
	printf("{\"transactions\": %ld, \"seconds\": %.3f, \"p50\": %.1f, \"p90\": %.1f, "
	       "\"p99\": %.1f, \"deviation\": %.1f}\n", count, ns / 1e9,
	       times[count / 2] / 10.0, times[count * 9 / 10] / 10.0,
	       times[count * 99 / 100] / 10.0, sqrt(squares));
}

static void call_all(int connections, int64_t warm_ns, int64_t ns)
{
	struct caller *callers = calloc(connections, sizeof(*callers));
	uint32_t *all;
	long count = 0;

	if (!callers)
		die("no memory");
	from = now_ns(CLOCK_MONOTONIC) + warm_ns;
	until = from + ns;
	for (int i = 0; i < connections; i++) {
		/* Untouched pages of it cost nothing. */
		callers[i].times = malloc(MAX_TIMES * sizeof(uint32_t));
		if (!callers[i].times)
			die("no memory for times");
		start(&callers[i].thread, call, &callers[i]);
	}
	for (int i = 0; i < connections; i++) {
		pthread_join(callers[i].thread, NULL);
		count += callers[i].count;
	}
	all = malloc((count + 1) * sizeof(*all));
	if (!all)
		die("no memory for %ld times", count);
	count = 0;
	for (int i = 0; i < connections; i++) {
		memcpy(all + count, callers[i].times, callers[i].count * sizeof(*all));
		count += callers[i].count;
	}
	qsort(all, count, sizeof(*all), ascending);
	tell(all, count, ns);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "serve", no_argument, NULL, 's' },
		{ "call", required_argument, NULL, 'c' },
		{ "port", required_argument, NULL, 'p' },
		{ "table", required_argument, NULL, 't' },
		{ "connections", required_argument, NULL, 'n' },
		{ "warm", required_argument, NULL, 'w' },
		{ "ms", required_argument, NULL, 'm' },
		{}
	};
	long long port = 0, connections = 0, warm = 0, ms = 0;
	bool serving = false, calling = false;
	int c;

	tool_name = "rpc";
	address.sin_family = AF_INET;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 's')
			serving = true;
		else if (c == 'c')
			address = lab_address(optarg), calling = true;
		else if (c == 'p')
			port = number("--port", optarg, 1, 65535);
		else if (c == 't')
			table_bytes = number("--table", optarg, LINE, MAX_TABLE);
		else if (c == 'n')
			connections = number("--connections", optarg, 1, MAX_FLOWS);
		else if (c == 'w')
			warm = number("--warm", optarg, 0, MAX_MS);
		else if (c == 'm')
			ms = number("--ms", optarg, 1, MAX_MS);
		else
			die("unknown option");
	}
	if (optind != argc || serving == calling || !port || (calling && !(connections && ms)))
		die("--serve or --call ADDRESS with --connections and --ms, and --port");
	address.sin_port = htons(port);
	if (serving)
		serve();
	call_all(connections, warm * 1000000, ms * 1000000);
	return 0;
}
