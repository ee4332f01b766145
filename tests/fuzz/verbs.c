/* Setting up verbs and messages over it, of a rank that has the secret and does what it
 * likes: the job fails, or what was posted arrives; not a byte is written beside the
 * posted buffers. Input: a byte of flags (1: what the connection carries while setting
 * up is in the input, too), then what happens, each a byte and what belongs to it:
 *   0 a message: 2 bytes of length, and so many bytes
 *   1 a write has come: 4 bytes of value, 4 of length
 *   2 the oldest send or write is complete     3 it failed, and how: a byte
 *   4 bytes on the connection: 2 bytes of length, and so many bytes */
#include "tests/fuzz/harness.h"

#include "conformance/guard.h"
#include "operators/operator_tables.h"
#include "transport/verbs/verbs_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECEIVES_POSTED = 5, POSTED = 8, IDS = 128 };

static long taken, refused;
static const log_sink quiet = {GRADCOMP_LOG_ERROR, 0};
static const size_t sizes[POSTED] = {40, 0, 5000, 128, 140000, 10, 6000, 140000};

static struct {
	uint64_t receive[IDS], send[IDS];
	unsigned char *at[IDS];
	unsigned receives, sends, events;
	fabric_event event[IDS];
	int regs;
} f;

static gradcomp_status f_open(const fabric_choice *c, void **device, fabric_info *info, gradcomp_error *err)
{
	(void)c, (void)err;
	*device = &f;
	*info = (fabric_info){.key = "fuzz", .most = 1 << 30, .foreign = 1};
	return GRADCOMP_OK;
}

static void f_close(void *device)
{
	(void)device;
}

static gradcomp_status f_reg(void *device, void *at, size_t bytes, fabric_memory *out, gradcomp_error *err)
{
	(void)device, (void)bytes, (void)err;
	*out = (fabric_memory){at, 1, 1};
	f.regs++;
	return GRADCOMP_OK;
}

static void f_unreg(void *device, fabric_memory *m)
{
	(void)device;
	m->handle = NULL;
	f.regs--;
}

static gradcomp_status f_queue(void *device, unsigned sends, unsigned receives, void **queue, fabric_address *mine,
                               int *fd, gradcomp_error *err)
{
	(void)device, (void)sends, (void)receives, (void)err;
	f.receives = f.sends = f.events = 0;
	*mine = (fabric_address){.mtu = 1};
	*queue = &f;
	*fd = -1;
	return GRADCOMP_OK;
}

static gradcomp_status f_connect(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err)
{
	(void)queue, (void)peer, (void)seconds, (void)err;
	return GRADCOMP_OK;
}

static int f_receive(void *queue, uint64_t id, void *at, uint32_t bytes, uint32_t local)
{
	(void)queue, (void)bytes, (void)local;
	if (f.receives == RECEIVES)
		abort(); /* more than the queue was made for */
	f.receive[f.receives] = id;
	f.at[f.receives++] = at;
	return 0;
}

static int f_send(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local)
{
	(void)queue, (void)at, (void)bytes, (void)local;
	if (f.sends == SENDS + WINDOW)
		abort();
	f.send[f.sends++] = id;
	return 0;
}

static int f_write(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local, uint64_t to,
                   uint32_t remote, int notify, uint32_t value)
{
	unsigned char last = bytes ? ((const unsigned char *)at)[bytes - 1] : 0;
	(void)to, (void)remote, (void)notify, (void)value;
	return f_send(queue, id, &last, bytes, local);
}

static int f_poll(void *queue, fabric_event *out, int most)
{
	int n = (int)f.events < most ? (int)f.events : most;
	(void)queue;
	memcpy(out, f.event, (size_t)n * sizeof *out);
	f.events -= (unsigned)n;
	memmove(f.event, f.event + n, f.events * sizeof *out);
	return n;
}

static int f_arm(void *queue)
{
	(void)queue;
	return 0;
}

static void f_ack(void *queue)
{
	(void)queue;
}

static const fabric_ops ops = {sizeof ops, FABRIC_VERSION, f_open,  f_close, f_reg, f_unreg, f_queue, f_connect,
                               f_receive,  f_send,         f_write, f_poll,  f_arm, f_ack,   f_ack};

static void happens(fabric_event e)
{
	e.why = "";
	if (f.events < IDS)
		f.event[f.events++] = e;
}

/* The first receive takes it. */
static void arrives(fabric_event e, const uint8_t *data, size_t n)
{
	if (!f.receives)
		return;
	e.id = f.receive[0];
	if (n)
		memcpy(f.at[0], data, n < RECEIVE_BYTES ? n : RECEIVE_BYTES);
	f.receives--;
	memmove(f.receive, f.receive + 1, f.receives * sizeof f.receive[0]);
	memmove(f.at, f.at + 1, f.receives * sizeof f.at[0]);
	happens(e);
}

static void completes(fabric_result result)
{
	if (!f.sends)
		return;
	happens((fabric_event){.id = f.send[0], .result = result});
	f.sends--;
	memmove(f.send, f.send + 1, f.sends * sizeof f.send[0]);
}

static uint32_t word(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Sets up as a rank that keeps to the rules does. */
static void stand(peer_link *l, int fd)
{
	static const uint32_t agreed[] = {RECEIVE_BYTES, CREDITS, WINDOW, EAGER_BYTES};
	uint8_t frame[SETUP_BYTES] = {'1', 'G', 'C', 'V', 0, 1};
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 4; k++)
			frame[32 + 4 * i + k] = (uint8_t)(agreed[i] >> 8 * k);
	for (frame[4] = 1; frame[4] <= 3; frame[4]++) {
		if (send(fd, frame, sizeof frame, 0) != sizeof frame)
			abort();
		l->ops->progress(l);
		completes(FABRIC_DONE);
		l->ops->progress(l);
	}
}

static void feed(peer_link *l, int fd, const uint8_t *data, size_t size)
{
	while (size && !transport_failed(l->c->t) && l->use->kind == &verbs_kind) {
		int what = *data % 5;
		size_t n = 0;

		data++;
		size--;
		if (what == 0 || what == 4) {
			if (size < 2)
				return;
			n = data[0] | (size_t)data[1] << 8;
			data += 2;
			size -= 2;
			n = n < size ? n : size;
		} else if ((what == 1 && size < 8) || (what == 3 && !size)) {
			return;
		}
		if (what == 0) {
			arrives((fabric_event){.bytes = (uint32_t)n}, data, n);
		} else if (what == 1) {
			arrives((fabric_event){.written = 1, .value = word(data), .bytes = word(data + 4)}, NULL, 0);
			n = 8;
		} else if (what == 2 || what == 3) {
			completes(what == 2 ? FABRIC_DONE : (fabric_result)(data[0] % 4));
			n = what == 3;
		} else if (send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
			return;
		}
		data += n;
		size -= n;
		if (l->active)
			l->ops->progress(l);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static transport *t;
	static guarded buf[POSTED];
	request rq[POSTED];
	channel c = {0};
	peer_link l = {0};
	int pair[2], done = 0, fallen;
	if (size < 1 || size > 16000)
		return 0;
	if (!t) {
		transport_options o = {.rank = 0,
		                       .nranks = 1,
		                       .timeout = 10,
		                       .wait_timeout = 10,
		                       .streams = 1,
		                       .chunk = 65536,
		                       .allow = "tcp,verbs",
		                       .log = &quiet,
		                       .operators = operators_cpu(),
		                       .fabric = &ops,
		                       .verbs_memory = 1 << 20};

		if (transport_listen(&o, &t, NULL))
			abort();
		t->nranks = 2;
		t->peers.endpoints = calloc(2, sizeof *t->peers.endpoints);
		if (t->peers.endpoints)
			t->peers.endpoints[1].naddr = 1;
		if (!t->peers.endpoints || verbs_device_open(link_use_of(t, HELLO_VERBS), t, NULL))
			abort();
		for (int i = 0; i < POSTED; i++)
			buf[i] = guard("a buffer", 140000, 64);
	}
	atomic_store(&t->failure.set, 0);
	c.t = t;
	l.c = &c;
	l.world = 1;
	l.use = link_use_of(t, HELLO_VERBS);
	l.passed = -1;
	l.h = (hello){.from = 1, .nranks = 2, .streams = 1, .chunk = CHUNK_MIN, .kind = HELLO_VERBS};
	for (int i = 0; i < STREAMS_MAX; i++)
		l.fd[i] = -1;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		abort();
	l.fd[0] = pair[0];
	l.nfd = 1;
	if (l.use->kind->open(&l) != LINK_NEGOTIATES)
		abort();
	l.state = PEER_SETTING_UP;
	for (int i = 0; i < POSTED; i++) {
		rq[i] = (request){.bytes = sizes[i],
		                  .buf = (unsigned char *)buf[i].data + buf[i].bytes - sizes[i],
		                  .reduce = i == 3,
		                  .sending = i >= RECEIVES_POSTED,
		                  .dtype = GRADCOMP_F32,
		                  .op = GRADCOMP_SUM};
		memset(rq[i].buf, 0, sizes[i]);
		link_post(&l, &rq[i]);
	}
	if (!(*data & 1))
		stand(&l, pair[1]);
	feed(&l, pair[1], data + 1, size - 1);
	shutdown(pair[1], SHUT_WR);
	for (int i = 0; i < 100 && !transport_failed(t) && l.active && l.ops->progress(&l); i++)
		;
	for (int i = 0; i < POSTED; i++)
		done += rq[i].done;
	fallen = l.use->kind != &verbs_kind;
	if (transport_failed(t) || fallen)
		refused++;
	else
		taken += done;
	l.ops->close(&l, 0);
	close(pair[0]);
	close(pair[1]);
	/* Blocks stay in the pool; nothing else is registered. */
	if (f.regs > 2)
		abort();
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("verbs", 60000, &taken, &refused);
}
#endif
