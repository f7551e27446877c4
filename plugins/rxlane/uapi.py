# SPDX-License-Identifier: GPL-2.0-or-later
"""The only home of numbers that belong to the kernel's user interface.

Each block cites the header that fixes the numbers; none of them ever changes.
"""

from __future__ import annotations

# include/uapi/linux/netlink.h
NETLINK_ROUTE = 0
NETLINK_GENERIC = 16
NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLMSG_OVERRUN = 4
SOL_NETLINK = 270  # include/linux/socket.h
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NLA_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
NLMSGERR_ATTR_MSG = 1
NLMSGERR_ATTR_OFFS = 2
NLMSGERR_ATTR_MISS_TYPE = 5
NL_POLICY_TYPE_ATTR_MAX_VALUE_U = 5

# include/uapi/linux/genetlink.h
GENL_ID_CTRL = 0x10
CTRL_CMD_GETFAMILY = 3
CTRL_CMD_GETPOLICY = 10
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2
CTRL_ATTR_OPS = 6
CTRL_ATTR_POLICY = 8
CTRL_ATTR_OP_POLICY = 9
CTRL_ATTR_OP = 10
CTRL_ATTR_OP_ID = 1
CTRL_ATTR_POLICY_DO = 1

# include/uapi/linux/netdev.h
NETDEV_FAMILY_NAME = "netdev"
NETDEV_FAMILY_VERSION = 1
NETDEV_CMD_QUEUE_GET = 10
NETDEV_CMD_NAPI_GET = 11
NETDEV_CMD_NAPI_SET = 14
NETDEV_A_NAPI_IFINDEX = 1
NETDEV_A_NAPI_ID = 2
NETDEV_A_NAPI_IRQ = 3
NETDEV_A_NAPI_PID = 4
NETDEV_A_NAPI_DEFER_HARD_IRQS = 5
NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT = 6
NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT = 7
NETDEV_A_NAPI_THREADED = 8
NETDEV_A_QUEUE_ID = 1
NETDEV_A_QUEUE_IFINDEX = 2
NETDEV_A_QUEUE_TYPE = 3
NETDEV_A_QUEUE_NAPI_ID = 4
NETDEV_QUEUE_TYPE = ("rx", "tx")  # enum netdev_queue_type

# include/uapi/linux/rtnetlink.h and include/uapi/linux/if_link.h
RTM_GETLINK = 18
IFLA_IFNAME = 3
IFLA_NUM_RX_QUEUES = 32
IFLA_ALT_IFNAME = 53
IFLA_EXT_MASK = 29
RTEXT_FILTER_SKIP_STATS = 1 << 3

# include/uapi/linux/if.h
IFF_UP = 0x1
IFNAMSIZ = 16  # with the terminating NUL

# include/linux/sched.h; stable since 2.6 and shown in /proc/PID/stat
PF_KTHREAD = 0x00200000

# include/uapi/linux/sched.h
SCHED_POLICY = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}
SCHED_NUMBER = {name: number for number, name in SCHED_POLICY.items()}
