/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One AF_XDP socket in copy mode on queue 0 of a device, by bpf(2) and the
 * socket's own rings (Documentation/networking/af_xdp.rst), so that the tool
 * links statically.  The XDP program redirects IPv4/UDP to one port into the
 * socket and passes everything else.  A BPF link holds it: it goes with the
 * process.
 *
 * The program is attached in the driver where the driver takes it: the socket
 * learns its NAPI from the driver's frames only, and without one SO_BUSY_POLL
 * does nothing.
 */
#ifndef BENCH_XSK_H
#define BENCH_XSK_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/if.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "common.h"

#define FRAME_SIZE	2048
#define RING_SIZE	512		/* entries of each ring, a power of two */
#define FRAMES		(2 * RING_SIZE)	/* half to receive, half to send */
#define HEADERS		((int)(sizeof(struct ethhdr) + sizeof(struct iphdr) + \
			       sizeof(struct udphdr)))

/* A ring shared with the kernel; `ours` is the index that this side moves. */
struct ring {
	uint32_t *producer, *consumer;
	void *entries;
	uint32_t ours;
};

struct xsk {
	int fd, link;
	const char *attached;		/* "driver" or "generic" */
	uint8_t *umem;
	struct ring fill, completion, rx, tx;
	uint8_t header[sizeof(struct ethhdr) + sizeof(struct iphdr) +
		       sizeof(struct udphdr)];
	unsigned int sent, completed;	/* frames, both modulo 2^32 */
};

static inline int sys_bpf(int cmd, union bpf_attr *attr, const char *what)
{
	int fd = syscall(SYS_bpf, cmd, attr, sizeof(*attr));

	if (fd < 0 && what)
		die("%s: %s", what, strerror(errno));
	return fd;
}

#define INSN(op, dst, src, offset, value)				\
	{ .code = (op), .dst_reg = (dst), .src_reg = (src),		\
	  .off = (offset), .imm = (value) }
#define LOAD(size, dst, src, offset)					\
	INSN(BPF_LDX | BPF_MEM | (size), dst, src, offset, 0)
#define L3	((int)sizeof(struct ethhdr))
#define L4	((int)(L3 + sizeof(struct iphdr)))
#define PASS	19			/* index of the instructions that pass */
#define UNLESS(here, reg, value)					\
	INSN(BPF_JMP | BPF_JNE | BPF_K, reg, 0, PASS - (here) - 1, value)

/* The program's descriptor: `port` is redirected to the entry of the queue. */
static inline int xsk_program(int map, int port)
{
	const struct bpf_insn code[] = {
		/* 0 */ LOAD(BPF_W, 2, 1, offsetof(struct xdp_md, data)),
		/* 1 */ LOAD(BPF_W, 3, 1, offsetof(struct xdp_md, data_end)),
		/* 2 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
		/* 3 */ INSN(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, HEADERS),
		/* 4 */ INSN(BPF_JMP | BPF_JGT | BPF_X, 4, 3, PASS - 5, 0),
		/* 5 */ LOAD(BPF_H, 5, 2, offsetof(struct ethhdr, h_proto)),
		/* 6 */ UNLESS(6, 5, htons(ETH_P_IP)),
		/* 7 */ LOAD(BPF_B, 5, 2, L3),	/* version and header length */
		/* 8 */ UNLESS(8, 5, 0x45),
		/* 9 */ LOAD(BPF_B, 5, 2, L3 + offsetof(struct iphdr, protocol)),
		/* 10 */ UNLESS(10, 5, IPPROTO_UDP),
		/* 11 */ LOAD(BPF_H, 5, 2, L4 + offsetof(struct udphdr, dest)),
		/* 12 */ UNLESS(12, 5, htons(port)),
		/* 13 */ LOAD(BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index)),
		/* 14, 15 */ INSN(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map),
		INSN(0, 0, 0, 0, 0),
		/* 16 */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS),
		/* 17 */ INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
		/* 18 */ INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
		/* 19 */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS),
		/* 20 */ INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	static char log[4096];
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uintptr_t)code,
		.insn_cnt = sizeof(code) / sizeof(*code),
		.license = (uintptr_t)"GPL",
		.log_buf = (uintptr_t)log,
		.log_size = sizeof(log),
		.log_level = 1,
	};
	int fd = sys_bpf(BPF_PROG_LOAD, &attr, NULL);

	if (fd < 0)
		die("XDP program: %s: %s", strerror(errno), log);
	return fd;
}

static inline void xsk_attach(struct xsk *x, int program, int ifindex)
{
	static const struct {
		const char *name;
		uint32_t flag;
	} modes[] = {
		{ "driver", XDP_FLAGS_DRV_MODE },
		{ "generic", XDP_FLAGS_SKB_MODE },
	};

	for (int i = 0; i < 2; i++) {
		union bpf_attr attr = {
			.link_create.prog_fd = program,
			.link_create.target_ifindex = ifindex,
			.link_create.attach_type = BPF_XDP,
			.link_create.flags = modes[i].flag,
		};

		x->attached = modes[i].name;
		x->link = sys_bpf(BPF_LINK_CREATE, &attr, NULL);
		if (x->link >= 0)
			return;
	}
	die("attaching the XDP program: %s", strerror(errno));
}

static inline void xsk_option(struct xsk *x, int name, uint32_t entries)
{
	if (setsockopt(x->fd, SOL_XDP, name, &entries, sizeof(entries)))
		die("AF_XDP ring %d: %s", name, strerror(errno));
}

static inline struct ring xsk_ring(struct xsk *x, const struct xdp_ring_offset *at,
				   size_t entry, uint64_t offset)
{
	uint8_t *map = mmap(NULL, at->desc + RING_SIZE * entry,
			    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			    x->fd, offset);

	if (map == MAP_FAILED)
		die("mapping an AF_XDP ring: %s", strerror(errno));
	return (struct ring){
		.producer = (uint32_t *)(map + at->producer),
		.consumer = (uint32_t *)(map + at->consumer),
		.entries = map + at->desc,
	};
}

static inline void xsk_rings(struct xsk *x)
{
	struct xdp_umem_reg reg = {
		.len = FRAMES * FRAME_SIZE,
		.chunk_size = FRAME_SIZE,
	};
	struct xdp_mmap_offsets at;
	socklen_t len = sizeof(at);

	x->umem = mmap(NULL, reg.len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (x->umem == MAP_FAILED)
		die("no memory for %d frames", FRAMES);
	reg.addr = (uintptr_t)x->umem;
	if (setsockopt(x->fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)))
		die("XDP_UMEM_REG: %s", strerror(errno));
	xsk_option(x, XDP_UMEM_FILL_RING, RING_SIZE);
	xsk_option(x, XDP_UMEM_COMPLETION_RING, RING_SIZE);
	xsk_option(x, XDP_RX_RING, RING_SIZE);
	xsk_option(x, XDP_TX_RING, RING_SIZE);
	if (getsockopt(x->fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &len))
		die("XDP_MMAP_OFFSETS: %s", strerror(errno));
	x->fill = xsk_ring(x, &at.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
	x->completion = xsk_ring(x, &at.cr, sizeof(uint64_t),
				 XDP_UMEM_PGOFF_COMPLETION_RING);
	x->rx = xsk_ring(x, &at.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
	x->tx = xsk_ring(x, &at.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
}

static inline void xsk_give(struct xsk *x, uint64_t frame)
{
	((uint64_t *)x->fill.entries)[x->fill.ours++ % RING_SIZE] = frame;
	__atomic_store_n(x->fill.producer, x->fill.ours, __ATOMIC_RELEASE);
}

/* The next received frame, not yet taken, or NULL. */
static inline const struct xdp_desc *xsk_peek(struct xsk *x)
{
	if (x->rx.ours == __atomic_load_n(x->rx.producer, __ATOMIC_ACQUIRE))
		return NULL;
	return (struct xdp_desc *)x->rx.entries + x->rx.ours % RING_SIZE;
}

/* Takes the frame that xsk_peek() showed: it is received into again. */
static inline void xsk_take(struct xsk *x, const struct xdp_desc *desc)
{
	uint64_t frame = desc->addr & ~(uint64_t)(FRAME_SIZE - 1);

	__atomic_store_n(x->rx.consumer, ++x->rx.ours, __ATOMIC_RELEASE);
	xsk_give(x, frame);
}

static inline void xsk_kick(struct xsk *x)
{
	if (sendto(x->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 &&
	    errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		die("AF_XDP send: %s", strerror(errno));
}

/* Sends headers and payload; false when all frames are still on their way. */
static inline int xsk_send(struct xsk *x, const void *payload, int size)
{
	uint64_t frame = (RING_SIZE + x->sent % RING_SIZE) * FRAME_SIZE;
	struct xdp_desc *desc = (struct xdp_desc *)x->tx.entries +
				x->tx.ours % RING_SIZE;

	x->completed = __atomic_load_n(x->completion.producer, __ATOMIC_ACQUIRE);
	__atomic_store_n(x->completion.consumer, x->completed, __ATOMIC_RELEASE);
	if (x->sent - x->completed >= RING_SIZE) {
		xsk_kick(x);
		return 0;
	}
	memcpy(x->umem + frame, x->header, HEADERS);
	memcpy(x->umem + frame + HEADERS, payload, size);
	*desc = (struct xdp_desc){ .addr = frame, .len = HEADERS + size };
	x->sent++;
	__atomic_store_n(x->tx.producer, ++x->tx.ours, __ATOMIC_RELEASE);
	xsk_kick(x);
	return 1;
}

static inline uint16_t ip_checksum(const struct iphdr *ip)
{
	const uint8_t *byte = (const uint8_t *)ip;
	uint32_t sum = 0;

	for (size_t i = 0; i < sizeof(*ip); i += 2)
		sum += byte[i] << 8 | byte[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons(~sum & 0xffff);
}

/* Own addresses are the device's; a UDP checksum of 0 means none. */
static inline void xsk_header(struct xsk *x, const char *device, const uint8_t *peer_mac,
			      const struct sockaddr_in *to, int size)
{
	struct ethhdr *eth = (struct ethhdr *)x->header;
	struct iphdr ip = {
		.version = 4, .ihl = 5, .ttl = 1, .protocol = IPPROTO_UDP,
		.tot_len = htons(HEADERS - L3 + size),
		.daddr = to->sin_addr.s_addr,
	};
	struct udphdr udp = {
		.source = to->sin_port, .dest = to->sin_port,
		.len = htons(sizeof(udp) + size),
	};
	struct ifreq ifr = { 0 };
	struct sockaddr_in own;
	int fd = link_local_udp();

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", device);
	if (ioctl(fd, SIOCGIFHWADDR, &ifr))
		die("%s: no MAC address: %s", device, strerror(errno));
	memcpy(eth->h_source, ifr.ifr_hwaddr.sa_data, ETH_ALEN);
	memcpy(eth->h_dest, peer_mac, ETH_ALEN);
	eth->h_proto = htons(ETH_P_IP);
	if (ioctl(fd, SIOCGIFADDR, &ifr))
		die("%s: no IPv4 address: %s", device, strerror(errno));
	memcpy(&own, &ifr.ifr_addr, sizeof(own));
	close(fd);
	ip.saddr = own.sin_addr.s_addr;
	ip.check = ip_checksum(&ip);
	memcpy(x->header + L3, &ip, sizeof(ip));
	memcpy(x->header + L4, &udp, sizeof(udp));
}

/* The kernel gives the queue free a moment after a former socket's process ended. */
static inline void xsk_bind(struct xsk *x, const char *device)
{
	struct sockaddr_xdp sa = {
		.sxdp_family = AF_XDP,
		.sxdp_flags = XDP_COPY,
		.sxdp_ifindex = if_nametoindex(device),
	};
	int64_t give_up = now_ns(CLOCK_MONOTONIC) + 5 * NSEC;

	while (bind(x->fd, (struct sockaddr *)&sa, sizeof(sa))) {
		if (errno != EBUSY || now_ns(CLOCK_MONOTONIC) > give_up)
			die("AF_XDP bind to %s: %s", device, strerror(errno));
		sleep_until(now_ns(CLOCK_MONOTONIC) + 10000000);
	}
}

/* A socket that sends to `to` and receives what comes to the same port. */
static inline void xsk_open(struct xsk *x, const char *device, const uint8_t *peer_mac,
			    const struct sockaddr_in *to, int size)
{
	union bpf_attr map_attr = {
		.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4,
		.max_entries = 1,
	};
	int map = sys_bpf(BPF_MAP_CREATE, &map_attr, "XSKMAP");
	uint32_t queue = 0;
	union bpf_attr entry = {
		.map_fd = map, .key = (uintptr_t)&queue, .value = (uintptr_t)&x->fd,
	};

	x->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (x->fd < 0)
		die("AF_XDP socket: %s", strerror(errno));
	xsk_header(x, device, peer_mac, to, size);
	xsk_rings(x);
	for (uint64_t i = 0; i < RING_SIZE; i++)
		xsk_give(x, i * FRAME_SIZE);
	xsk_attach(x, xsk_program(map, ntohs(to->sin_port)),
		   if_nametoindex(device));
	xsk_bind(x, device);
	sys_bpf(BPF_MAP_UPDATE_ELEM, &entry, "XSKMAP entry");
}

#endif
