/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A plugin of QEMU's emulation: how many instructions each CPU of the guest has
 * executed, in a file that others map: 64-bit counts, one for each CPU.
 *
 * Loaded with -plugin FILE,instructions=PATH. Debian ships no qemu-plugin.h, so what
 * is used of the interface is declared here; PLUGIN_VERSION is the one of it
 * that the QEMU at hand takes (docs/devel/tcg-plugins of QEMU's source).
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CPUS	64
#define ARGUMENT "instructions="

struct qemu_plugin_tb;

enum { QEMU_PLUGIN_CB_NO_REGS };

typedef uint64_t qemu_plugin_id_t;
typedef void (*translated_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*executed_t)(unsigned int cpu, void *data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_t cb);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_t cb,
						 int flags, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);

__attribute__((visibility("default"))) int qemu_plugin_version = PLUGIN_VERSION;

static uint64_t *counts;

/* Each CPU's thread writes its own count, so nothing has to be atomic. */
static void executed(unsigned int cpu, void *data)
{
	if (cpu < CPUS)
		counts[cpu] += (uintptr_t)data;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	uintptr_t size = qemu_plugin_tb_n_insns(tb);

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, (void *)size);
}

__attribute__((visibility("default")))
int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	int file;

	(void)info;
	if (argc != 1 || strncmp(argv[0], ARGUMENT, strlen(ARGUMENT))) {
		fputs("instructions: the one argument is " ARGUMENT "PATH\n", stderr);
		return -1;
	}
	file = open(argv[0] + strlen(ARGUMENT), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, CPUS * sizeof(*counts))) {
		perror(argv[0]);
		return -1;
	}
	counts = mmap(NULL, CPUS * sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (counts == MAP_FAILED) {
		perror("mmap");
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
