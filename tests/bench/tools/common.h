/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the load tools of the bench share: argument parsing that names the bad
 * word and stops, clocks, and the rule that traffic stays on the lab's links.
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FLOWS	1024
#define MAX_MESSAGE	65507	/* largest UDP payload over IPv4 */
#define MAX_SECONDS	600
#define NSEC		1000000000LL

static const char *tool_name = "bench";

__attribute__((noreturn, format(printf, 1, 2)))
static inline void die(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s: ", tool_name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

/* A whole decimal number in [min, max]; anything else ends the tool. */
static inline long long number(const char *what, const char *text,
			       long long min, long long max)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(text, &end, 10);
	if (errno || end == text || *end || value < min || value > max)
		die("%s: '%s' is not a number from %lld to %lld",
		    what, text, min, max);
	return value;
}

static inline int64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts))
		die("clock_gettime: %s", strerror(errno));
	return ts.tv_sec * NSEC + ts.tv_nsec;
}

static inline void sleep_until(int64_t when_ns)
{
	struct timespec ts = {
		.tv_sec = when_ns / NSEC,
		.tv_nsec = when_ns % NSEC,
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

/*
 * The destination must be loopback or RFC 1918: a flood tool that takes any
 * address would sooner or later be aimed at one that is not the lab's.
 */
static inline struct sockaddr_in lab_address(const char *text)
{
	struct sockaddr_in sa = { .sin_family = AF_INET };
	uint32_t ip;

	if (inet_pton(AF_INET, text, &sa.sin_addr) != 1)
		die("--to: '%s' is not an IPv4 address", text);
	ip = ntohl(sa.sin_addr.s_addr);
	if (ip >> 24 != 127 && ip >> 24 != 10 && ip >> 20 != 0xac1 &&
	    ip >> 16 != 0xc0a8)
		die("--to: %s is neither loopback nor a private address", text);
	return sa;
}

/* A UDP socket that only reaches hosts on an attached link, never a gateway. */
static inline int link_local_udp(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int one = 1;

	if (fd < 0)
		die("socket: %s", strerror(errno));
	if (setsockopt(fd, SOL_SOCKET, SO_DONTROUTE, &one, sizeof(one)))
		die("SO_DONTROUTE: %s", strerror(errno));
	return fd;
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("CPU %d: %s", cpu, strerror(errno));
}

/* In a child: a session of its own, nothing to read from or print to */
static inline void detach(void)
{
	int null;

	setsid();
	null = open("/dev/null", O_RDWR);
	if (null < 0)
		die("/dev/null: %s", strerror(errno));
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
}

#endif
