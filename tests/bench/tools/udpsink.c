// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * udpsink - the application of the flood: one receiving process a flow
 *
 * Like N netserver children, each process blocks in recv() on its own port and
 * takes one message a call.  Messages are counted in steps of STEP_MS from the
 * first message that any of them saw, by the clock of the receiving side: a
 * starved receiver finds its full socket buffers after the flood has ended,
 * and those messages must not count as carried under flood.
 *
 * --spin adds one SCHED_IDLE process that counts rounds of a fixed piece of
 * work in the same steps.  What it gets done, against what it gets done in an
 * idle guest, is the CPU that the network left over; it needs no trust in the
 * kernel's own accounting of softirq time.
 *
 * --deaf binds the ports and reads none of them, and --work spins in the normal
 * class: together an application that has other work than the flood.
 *
 * Without --result the tool reports on stdout; with it the tool goes to the
 * background once all sockets are bound, and `udpsink --await FILE` prints
 * what it wrote.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common.h"

#define STEP_MS		100
#define MAX_STEPS	(MAX_SECONDS * 1000 / STEP_MS)
#define SPIN_ROUNDS	2000
#define READY_BYTE	'r'

struct shared {
	_Atomic int64_t start_ns;		/* 0 until the first message */
	_Atomic uint64_t spun[MAX_STEPS];
	_Atomic uint64_t received[MAX_STEPS];
	_Atomic uint64_t per_flow[MAX_FLOWS];
	_Atomic uint64_t bytes;
};

struct sink {
	int flows, port, steps, spin, work, deaf, rcvbuf, cpu;
	int wait_s;				/* for the first message */
	const char *result;
	int fd[MAX_FLOWS];
	pid_t child[MAX_FLOWS + 1];
	int children;
	struct shared *shared;
};

/* The coarse clock: no device access in a guest whose TSC is not trusted. */
static int64_t coarse_ns(void)
{
	return now_ns(CLOCK_MONOTONIC_COARSE);
}

/* Step of this moment, or -1 outside the window. */
static int step_now(const struct sink *s)
{
	int64_t start = s->shared->start_ns;
	int64_t step;

	if (!start)
		return -1;
	step = (coarse_ns() - start) / (STEP_MS * 1000000LL);
	return step < s->steps ? (int)step : -1;
}

static int bind_flow(const struct sink *s, int flow)
{
	struct sockaddr_in sa = {
		.sin_family = AF_INET,
		.sin_port = htons(s->port + flow),
	};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0)
		die("socket: %s", strerror(errno));
	if (s->rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &s->rcvbuf,
				    sizeof(s->rcvbuf)))
		die("SO_RCVBUF: %s", strerror(errno));
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("bind port %d: %s", s->port + flow, strerror(errno));
	return fd;
}

__attribute__((noreturn))
static void receive(const struct sink *s, int flow)
{
	static char buffer[MAX_MESSAGE + 1];

	for (;;) {
		ssize_t n = recv(s->fd[flow], buffer, sizeof(buffer), 0);
		int64_t unset = 0;
		int step;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("recv: %s", strerror(errno));
		if (!s->shared->start_ns)
			atomic_compare_exchange_strong(&s->shared->start_ns,
						       &unset, coarse_ns());
		step = step_now(s);
		if (step < 0)
			continue;
		s->shared->received[step]++;
		s->shared->per_flow[flow]++;
		s->shared->bytes += n;
	}
}

__attribute__((noreturn))
static void spin(const struct sink *s)
{
	struct sched_param param = { 0 };
	volatile unsigned int sum = 0;

	if (!s->work && sched_setscheduler(0, SCHED_IDLE, &param))
		die("SCHED_IDLE: %s", strerror(errno));
	for (;;) {
		int step;

		for (int i = 0; i < SPIN_ROUNDS; i++)
			sum += i;
		step = step_now(s);
		if (step >= 0)
			s->shared->spun[step]++;
	}
}

static void start_children(struct sink *s)
{
	pid_t parent = getpid();

	for (int i = s->deaf ? s->flows : 0; i < s->flows + s->spin; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork: %s", strerror(errno));
		if (!pid) {
			if (getppid() != parent)
				exit(1);
			if (i < s->flows)
				receive(s, i);
			spin(s);
		}
		s->child[s->children++] = pid;
	}
}

static void stop_children(struct sink *s)
{
	for (int i = 0; i < s->children; i++)
		kill(s->child[i], SIGKILL);
	for (int i = 0; i < s->children; i++)
		waitpid(s->child[i], NULL, 0);
}

/* Waits for the first message, then for the window; false when none came. */
static int wait_window(const struct sink *s)
{
	int64_t give_up = now_ns(CLOCK_MONOTONIC) + s->wait_s * NSEC;
	int64_t end;

	while (!s->shared->start_ns) {
		if (now_ns(CLOCK_MONOTONIC) > give_up)
			return 0;
		sleep_until(now_ns(CLOCK_MONOTONIC) + 10000000);
	}
	end = s->shared->start_ns + s->steps * STEP_MS * 1000000LL;
	sleep_until(end + 20000000);
	return 1;
}

static void print_list(FILE *out, const char *name, _Atomic uint64_t *list, int n)
{
	fprintf(out, ", \"%s\": [", name);
	for (int i = 0; i < n; i++)
		fprintf(out, "%s%llu", i ? ", " : "", (unsigned long long)list[i]);
	fputc(']', out);
}

static void report(const struct sink *s, FILE *out)
{
	fprintf(out, "{\"flows\": %d, \"step_ms\": %d, \"bytes\": %llu",
		s->flows, STEP_MS, (unsigned long long)s->shared->bytes);
	print_list(out, "received", s->shared->received, s->steps);
	print_list(out, "per_flow", s->shared->per_flow, s->flows);
	if (s->spin)
		print_list(out, "spun", s->shared->spun, s->steps);
	fputs("}\n", out);
	if (fflush(out))
		die("writing the result: %s", strerror(errno));
}

/* The result appears under its name only when it is whole. */
static void report_file(const struct sink *s)
{
	char part[4096];
	FILE *out;

	if (snprintf(part, sizeof(part), "%s.part", s->result) >= (int)sizeof(part))
		die("--result: name too long");
	out = fopen(part, "w");
	if (!out)
		die("%s: %s", part, strerror(errno));
	report(s, out);
	fclose(out);
	if (rename(part, s->result))
		die("%s: %s", s->result, strerror(errno));
}

static int await_result(const char *name, int wait_s)
{
	int64_t give_up = now_ns(CLOCK_MONOTONIC) + wait_s * NSEC;
	char buffer[4096];
	size_t n;
	FILE *in;

	while (!(in = fopen(name, "r"))) {
		if (errno != ENOENT)
			die("%s: %s", name, strerror(errno));
		if (now_ns(CLOCK_MONOTONIC) > give_up)
			die("%s: no result after %d s", name, wait_s);
		sleep_until(now_ns(CLOCK_MONOTONIC) + 20000000);
	}
	while ((n = fread(buffer, 1, sizeof(buffer), in)) > 0)
		fwrite(buffer, 1, n, stdout);
	fclose(in);
	return 0;
}

static void to_background(void)
{
	switch (fork()) {
	case -1: die("fork: %s", strerror(errno));
	case 0: break;
	default: _exit(0);
	}
	detach();
}

static int run(struct sink *s)
{
	int heard;

	s->shared = mmap(NULL, sizeof(*s->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->shared == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	for (int i = 0; i < s->flows; i++)
		s->fd[i] = bind_flow(s, i);
	if (s->result) {
		unlink(s->result);
		to_background();
	}
	if (!s->flows || s->deaf)	/* no message will start the window */
		s->shared->start_ns = coarse_ns();
	start_children(s);
	heard = wait_window(s);
	stop_children(s);
	if (s->result)
		report_file(s);
	else
		report(s, stdout);
	return heard ? 0 : 1;
}

static void usage(void)
{
	fputs("usage: udpsink --port N --flows N --ms N [--spin|--work] [--deaf]\n"
	      "               [--rcvbuf BYTES] [--cpu N] [--wait S] [--result FILE]\n"
	      "       udpsink --spin --ms N\n"
	      "       udpsink --await FILE [--wait S]\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "port", required_argument, NULL, 'p' },
		{ "flows", required_argument, NULL, 'f' },
		{ "ms", required_argument, NULL, 'd' },
		{ "spin", no_argument, NULL, 's' },
		{ "work", no_argument, NULL, 'W' },
		{ "deaf", no_argument, NULL, 'D' },
		{ "rcvbuf", required_argument, NULL, 'b' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "wait", required_argument, NULL, 'w' },
		{ "result", required_argument, NULL, 'r' },
		{ "await", required_argument, NULL, 'a' },
		{ 0 }
	};
	static struct sink s = { .wait_s = 20, .cpu = -1 };
	const char *await = NULL;
	int opt;

	tool_name = "udpsink";
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 'p': s.port = number("--port", optarg, 1, 65535); break;
		case 'f': s.flows = number("--flows", optarg, 1, MAX_FLOWS); break;
		case 'd':
			s.steps = number("--ms", optarg, STEP_MS, MAX_SECONDS * 1000)
				  / STEP_MS;
			break;
		case 's': s.spin = 1; break;
		case 'W': s.spin = s.work = 1; break;
		case 'D': s.deaf = 1; break;
		case 'b': s.rcvbuf = number("--rcvbuf", optarg, 1, 1 << 30); break;
		case 'c': s.cpu = number("--cpu", optarg, 0, CPU_SETSIZE - 1); break;
		case 'w': s.wait_s = number("--wait", optarg, 1, MAX_SECONDS); break;
		case 'r': s.result = optarg; break;
		case 'a': await = optarg; break;
		default: usage();
		}
	}
	if (optind != argc)
		usage();
	if (await)
		return await_result(await, s.wait_s);
	if (!s.steps || (s.flows && !s.port) || ((!s.flows || s.deaf) && !s.spin) ||
	    s.port + s.flows > 65536)
		usage();
	if (s.cpu >= 0)
		pin(s.cpu);
	return run(&s);
}
