/* Links with a latency, where the kernel has no netem. For every NAME two Ethernet devices are made in the caller's
 * network namespace, NAME and NAMEx: what goes into NAMEx comes out of NAME so much later, and the other way at once. So
 * of machines that each have one end, and whose other ends are on a bridge, every message takes the latency once.
 *
 *     wan CONTROL NAME...
 *
 * prints "ready" when they are there, and goes on until it is killed; the devices then go. CONTROL is a FIFO: a line
 * "LATENCY JITTER LOSS REORDER", in microseconds and shares, holds for what comes from then on. A latency is the same
 * for all frames, or drawn from LATENCY - JITTER to LATENCY + JITTER, but no frame overtakes another; of LOSS of them
 * nothing is heard, and REORDER of them go at once, as with netem. Draws are the same each time.
 *
 * TCP's segments of up to 64 KiB go through as one frame, unless frames are lost or overtake each other. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
	WIRES_MAX = 100,
	FRAME_MAX = 1 << 17,
	AT_ONCE = 64,          /* frames of a device, before others have their turn */
	QUEUE_MAX = 128 << 20, /* bytes; what comes then is lost */
};

typedef struct frame {
	struct frame *next;
	int64_t due; /* ns */
	size_t bytes;
	char data[];
} frame;

typedef struct wire {
	int machine, bridge; /* NAMEx and NAME */
	frame *first, **last;
	size_t queued; /* bytes */
	int64_t due;   /* of the last that came */
} wire;

static struct {
	int64_t latency, jitter; /* ns */
	double loss, reorder;
} now_is;

static wire wires[WIRES_MAX];
static int nwires;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "wan: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* splitmix64, as a number in 0 .. 1. */
static double draw(void)
{
	static uint64_t state;
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int device(const char *name, const char *suffix)
{
	struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		die("/dev/net/tun");
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s%s", name, suffix);
	if (ioctl(fd, TUNSETIFF, &r))
		die(r.ifr_name);
	return fd;
}

/* Long frames would be lost, or overtake, as a whole. */
static void set_offload(void)
{
	const unsigned long how =
		now_is.loss > 0 || now_is.reorder > 0 ? 0 : TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
	for (int k = 0; k < nwires; k++)
		if (ioctl(wires[k].machine, TUNSETOFFLOAD, how) || ioctl(wires[k].bridge, TUNSETOFFLOAD, how))
			die("offload");
}

static void listen_to(int control)
{
	char line[200];
	double latency, jitter, loss, reorder;
	const ssize_t n = read(control, line, sizeof line - 1);
	if (n <= 0)
		return;
	line[n] = 0;
	if (sscanf(line, "%lf %lf %lf %lf", &latency, &jitter, &loss, &reorder) != 4) {
		fprintf(stderr, "wan: not four numbers: %s", line);
		return;
	}
	now_is.latency = (int64_t)(1e3 * latency);
	now_is.jitter = (int64_t)(1e3 * jitter);
	now_is.loss = loss;
	now_is.reorder = reorder;
	set_offload();
}

/* A device that is down, or full, loses it, as any does. */
static void put(int fd, const char *data, size_t bytes)
{
	ssize_t n = write(fd, data, bytes);
	(void)n;
}

static void hold(wire *l, const char *data, size_t bytes)
{
	const bool overtakes = now_is.reorder > 0 && draw() < now_is.reorder;
	if (now_is.loss > 0 && draw() < now_is.loss)
		return;
	if (overtakes || (now_is.latency <= 0 && !l->first)) {
		put(l->bridge, data, bytes);
		return;
	}
	frame *f = l->queued + bytes > QUEUE_MAX ? NULL : malloc(sizeof *f + bytes);
	if (!f)
		return;
	const double off = now_is.jitter > 0 ? (2 * draw() - 1) * (double)now_is.jitter : 0;
	const int64_t due = clock_ns() + now_is.latency + (int64_t)off;
	l->due = due > l->due ? due : l->due;
	*f = (frame){.due = l->due, .bytes = bytes};
	memcpy(f->data, data, bytes);
	*l->last = f;
	l->last = &f->next;
	l->queued += bytes;
}

static void let_go(wire *l, int64_t now)
{
	for (frame *f; (f = l->first) && f->due <= now;) {
		put(l->bridge, f->data, f->bytes);
		l->first = f->next;
		if (!l->first)
			l->last = &l->first;
		l->queued -= f->bytes;
		free(f);
	}
}

/* Returns in how many ns the next frame is due; -1: there is none. */
static int64_t next_due(int64_t now)
{
	int64_t least = -1;
	for (int k = 0; k < nwires; k++) {
		if (!wires[k].first)
			continue;
		const int64_t left = wires[k].first->due > now ? wires[k].first->due - now : 0;
		least = least < 0 || left < least ? left : least;
	}
	return least;
}

static void forward(int control)
{
	static char data[FRAME_MAX];
	struct pollfd on[2 * WIRES_MAX + 1] = {{.fd = control, .events = POLLIN}};
	for (int k = 0; k < nwires; k++) {
		on[1 + 2 * k] = (struct pollfd){.fd = wires[k].machine, .events = POLLIN};
		on[2 + 2 * k] = (struct pollfd){.fd = wires[k].bridge, .events = POLLIN};
	}
	for (;;) {
		const int64_t left = next_due(clock_ns());
		const struct timespec until = {left / 1000000000, left % 1000000000};
		if (ppoll(on, (nfds_t)(1 + 2 * nwires), left < 0 ? NULL : &until, NULL) < 0)
			die("poll");
		if (on[0].revents)
			listen_to(control);
		for (int k = 0; k < nwires; k++) {
			wire *l = &wires[k];
			ssize_t n;
			for (int i = on[1 + 2 * k].revents ? 0 : AT_ONCE;
			     i < AT_ONCE && (n = read(l->machine, data, sizeof data)) > 0; i++)
				hold(l, data, (size_t)n);
			for (int i = on[2 + 2 * k].revents ? 0 : AT_ONCE;
			     i < AT_ONCE && (n = read(l->bridge, data, sizeof data)) > 0; i++)
				put(l->machine, data, (size_t)n);
			let_go(l, clock_ns());
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc - 2 > WIRES_MAX) {
		fprintf(stderr, "usage: wan CONTROL NAME...\n");
		return 2;
	}
	/* For both ways: it has an end when nobody else has it open. */
	const int control = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (control < 0)
		die(argv[1]);
	prctl(PR_SET_TIMERSLACK, 1UL);
	for (; nwires < argc - 2; nwires++) {
		wire *l = &wires[nwires];
		l->machine = device(argv[2 + nwires], "x");
		l->bridge = device(argv[2 + nwires], "");
		l->last = &l->first;
	}
	set_offload();
	puts("ready");
	fflush(stdout);
	forward(control);
}
