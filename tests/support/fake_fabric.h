/* Fabrics (fabric.h) for tests of links over verbs: a fake one that needs no device
 * and leads from thread to thread of one process, and this machine's own where it has
 * a device. The fake one keeps a real one's promises and no others: messages arrive
 * in order, completions of sends come some time later, memory is reached by key and
 * within its bounds only, and who is sent more than it has receives for, breaks. */
#ifndef TESTS_SUPPORT_FAKE_FABRIC_H
#define TESTS_SUPPORT_FAKE_FABRIC_H

#include "transport/verbs/fabric.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FAKE_QUEUES 256
#define FAKE_REGIONS 1024
#define FAKE_EVENTS 256
#define FAKE_LATE 200e-6 /* s, at most, from a send to its completion */

typedef struct fake_receive {
	uint64_t id;
	unsigned char *at;
	uint32_t bytes;
} fake_receive;

typedef struct fake_queue {
	int used, fd, armed, broken;
	int peer; /* number of its queue; -1: not connected */
	unsigned receives, nevents, most, sends;
	fake_receive receive[FAKE_EVENTS];
	fabric_event event[FAKE_EVENTS];
	double due[FAKE_EVENTS];
	int own[FAKE_EVENTS]; /* it is a send's */
} fake_queue;

static struct {
	pthread_mutex_t lock;
	fake_queue queue[FAKE_QUEUES];
	struct {
		unsigned char *at;
		size_t bytes;
		int used;
	} region[FAKE_REGIONS];
	uint32_t generation, draw;
	/* A test sets these. */
	size_t lockable; /* bytes that can be registered at a time; 0: any number */
	size_t locked;
	const char *none; /* why there is no device */
	/* A test can ask for these. */
	unsigned registered, written;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline double fake_now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static inline gradcomp_status fake_open(const fabric_choice *c, void **device, fabric_info *info, gradcomp_error *err)
{
	(void)c;
	if (fake.none) {
		snprintf(err->text, sizeof err->text, "%s", fake.none);
		return err->status = GRADCOMP_ERR_NOTFOUND;
	}
	*info = (fabric_info){.name = "fake", .key = "fake", .most = 1 << 30, .foreign = 1};
	*device = &fake;
	return GRADCOMP_OK;
}

static inline void fake_close(void *device)
{
	(void)device;
}

static inline gradcomp_status fake_reg(void *device, void *at, size_t bytes, fabric_memory *out, gradcomp_error *err)
{
	unsigned i = 0;
	(void)device;
	pthread_mutex_lock(&fake.lock);
	while (i < FAKE_REGIONS && fake.region[i].used)
		i++;
	if (i == FAKE_REGIONS || (fake.lockable && fake.locked + bytes > fake.lockable)) {
		pthread_mutex_unlock(&fake.lock);
		snprintf(err->text, sizeof err->text, "cannot register %zu bytes: the limit of locked memory is %zu",
		         bytes, fake.lockable);
		return err->status = GRADCOMP_ERR_RANGE;
	}
	fake.region[i].at = at;
	fake.region[i].bytes = bytes;
	fake.region[i].used = 1;
	fake.locked += bytes;
	fake.registered++;
	*out = (fabric_memory){&fake.region[i], i, i | ++fake.generation << 10};
	fake.region[i].used = (int)fake.generation;
	pthread_mutex_unlock(&fake.lock);
	return GRADCOMP_OK;
}

static inline void fake_unreg(void *device, fabric_memory *m)
{
	(void)device;
	pthread_mutex_lock(&fake.lock);
	fake.locked -= fake.region[m->local].bytes;
	fake.region[m->local].used = 0;
	pthread_mutex_unlock(&fake.lock);
	m->handle = NULL;
}

static inline gradcomp_status fake_queue_open(void *device, unsigned sends, unsigned receives, void **queue,
                                              fabric_address *mine, int *fd, gradcomp_error *err)
{
	int i = 0;
	(void)device, (void)receives;
	pthread_mutex_lock(&fake.lock);
	while (i < FAKE_QUEUES && fake.queue[i].used)
		i++;
	if (i < FAKE_QUEUES)
		fake.queue[i] = (fake_queue){
			.used = 1, .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .peer = -1, .most = sends};
	pthread_mutex_unlock(&fake.lock);
	if (i == FAKE_QUEUES) {
		snprintf(err->text, sizeof err->text, "no more queues");
		return err->status = GRADCOMP_ERR_NOMEM;
	}
	*mine = (fabric_address){.number = (uint32_t)i, .mtu = 3};
	*fd = fake.queue[i].fd;
	*queue = &fake.queue[i];
	return GRADCOMP_OK;
}

static inline gradcomp_status fake_connect(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err)
{
	fake_queue *q = queue;
	(void)seconds, (void)err;
	pthread_mutex_lock(&fake.lock);
	q->peer = (int)peer->number;
	pthread_mutex_unlock(&fake.lock);
	return GRADCOMP_OK;
}

/* Called with the lock held. */
static inline void fake_event(fake_queue *q, fabric_event e, int own, double late)
{
	if (q->nevents == FAKE_EVENTS)
		abort();
	q->own[q->nevents] = own;
	q->due[q->nevents] = fake_now() + late;
	q->event[q->nevents++] = e;
	if (q->armed) {
		q->armed = 0;
		eventfd_write(q->fd, 1);
	}
}

static inline void fake_break(fake_queue *q, uint64_t id, fabric_result result, const char *why)
{
	q->broken = 1;
	fake_event(q, (fabric_event){.id = id, .result = result, .why = why}, 0, 0);
}

static inline int fake_receive_post(void *queue, uint64_t id, void *at, uint32_t bytes, uint32_t local)
{
	fake_queue *q = queue;
	(void)local;
	pthread_mutex_lock(&fake.lock);
	if (q->receives == FAKE_EVENTS)
		abort();
	q->receive[q->receives++] = (fake_receive){id, at, bytes};
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

/* The peer's queue with its first receive, or NULL; the lock is held. */
static inline fake_queue *fake_peer(fake_queue *q, uint64_t id, int takes)
{
	fake_queue *p = q->peer >= 0 ? &fake.queue[q->peer] : NULL;
	if (q->broken)
		return NULL;
	if (!p || !p->used || p->broken || p->peer != q - fake.queue) {
		fake_break(q, id, FABRIC_SILENT, "no answer");
		return NULL;
	}
	if (takes && !p->receives) {
		fake_break(q, id, FABRIC_SILENT, "receiver not ready");
		return NULL;
	}
	return p;
}

static inline double fake_late(void)
{
	fake.draw = fake.draw * 1664525u + 1013904223u;
	return fake.draw >> 31 ? FAKE_LATE * (fake.draw >> 8 & 0xff) / 256 : 0;
}

static inline void fake_take(fake_queue *p, fabric_event e)
{
	e.id = p->receive[0].id;
	p->receives--;
	memmove(p->receive, p->receive + 1, p->receives * sizeof p->receive[0]);
	fake_event(p, e, 0, 0);
}

static inline int fake_send(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local)
{
	fake_queue *q = queue, *p;
	int rc = 0;
	(void)local;
	pthread_mutex_lock(&fake.lock);
	if (q->sends == q->most)
		rc = ENOMEM;
	p = rc ? NULL : fake_peer(q, id, 1);
	if (p && p->receive[0].bytes < bytes) {
		fake_break(q, id, FABRIC_BROKEN, "message too long");
	} else if (p) {
		memcpy(p->receive[0].at, at, bytes);
		fake_take(p, (fabric_event){.bytes = bytes, .why = "success"});
		q->sends++;
		fake_event(q, (fabric_event){.id = id, .why = "success"}, 1, fake_late());
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

static inline int fake_write(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local, uint64_t to,
                             uint32_t remote, int notify, uint32_t value)
{
	fake_queue *q = queue, *p;
	unsigned i = remote & (FAKE_REGIONS - 1);
	int rc = 0;
	(void)local;
	pthread_mutex_lock(&fake.lock);
	if (q->sends == q->most)
		rc = ENOMEM;
	p = rc ? NULL : fake_peer(q, id, notify);
	if (p) {
		unsigned char *from = fake.region[i].at, *dst = (unsigned char *)(uintptr_t)to;
		int open = fake.region[i].used && (uint32_t)fake.region[i].used == remote >> 10 && dst >= from &&
		           bytes <= fake.region[i].bytes && (size_t)(dst - from) <= fake.region[i].bytes - bytes;

		if (open) {
			memcpy(dst, at, bytes);
			fake.written++;
			if (notify)
				fake_take(p, (fabric_event){
						     .written = 1, .bytes = bytes, .value = value, .why = "success"});
			q->sends++;
			fake_event(q, (fabric_event){.id = id, .why = "success"}, 1, fake_late());
		} else {
			fake_break(q, id, FABRIC_DENIED, "remote access error");
			fake_break(p, p->receives ? p->receive[0].id : 0, FABRIC_BROKEN, "flushed");
		}
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

static inline int fake_poll(void *queue, fabric_event *out, int most)
{
	fake_queue *q = queue;
	double now = fake_now();
	unsigned kept = 0;
	int n = 0, held = 0;
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < q->nevents; i++) {
		/* Completions of sends stay in their order. */
		held |= q->own[i] && q->due[i] > now;
		if (n < most && !(q->own[i] && held)) {
			q->sends -= (unsigned)q->own[i];
			out[n++] = q->event[i];
			continue;
		}
		q->event[kept] = q->event[i];
		q->own[kept] = q->own[i];
		q->due[kept++] = q->due[i];
	}
	q->nevents = kept;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static inline int fake_arm(void *queue)
{
	fake_queue *q = queue;
	pthread_mutex_lock(&fake.lock);
	/* There is no timer for what is late: look again. */
	if (q->nevents)
		eventfd_write(q->fd, 1);
	else
		q->armed = 1;
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

static inline void fake_ack(void *queue)
{
	eventfd_t n;
	eventfd_read(((fake_queue *)queue)->fd, &n);
}

static inline void fake_unqueue(void *queue)
{
	fake_queue *q = queue;
	pthread_mutex_lock(&fake.lock);
	close(q->fd);
	q->used = 0;
	pthread_mutex_unlock(&fake.lock);
}

static const fabric_ops fake_fabric = {
	sizeof(fabric_ops), FABRIC_VERSION, fake_open,  fake_close, fake_reg, fake_unreg, fake_queue_open, fake_connect,
	fake_receive_post,  fake_send,      fake_write, fake_poll,  fake_arm, fake_ack,   fake_unqueue};

/* The module of this program's build over this machine's device; NULL without. */
static inline const fabric_ops *real_fabric(void)
{
	char path[4200], exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	DIR *dir = opendir("/sys/class/infiniband");
	int there = 0;
	void *module;
	for (struct dirent *e; dir && (e = readdir(dir));)
		there |= e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	if (n <= 0 || !there)
		return NULL;
	exe[n] = '\0';
	for (int up = 0; up < 3; up++)
		*strrchr(exe, '/') = '\0';
	snprintf(path, sizeof path, "%s/lib/gradcomp/" FABRIC_MODULE, exe);
	module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!module)
		printf("# %s\n", dlerror());
	return module ? dlsym(module, FABRIC_SYMBOL) : NULL;
}

#endif
