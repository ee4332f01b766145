/* Links over verbs: what is used when, ranks that do not do the same, ranks that
 * leave or die, keys that open nothing, and every fallback to tcp with the line that
 * says why. On a fake device, and on this machine's where it has one. */
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#include "tests/support/fake_fabric.h"
#include "transport/wire/record_crypto.h"
#include "transport/verbs/verbs_internal.h"

#include <fcntl.h>

#define SOON 10 /* s, far from wait_timeout */

static const fabric_ops *base; /* the fabric at hand */
static fabric_ops bent;        /* it, with a function changed */
static atomic_int calls;

static const log_sink warnings = {GRADCOMP_LOG_INFO, 0};

/* Ranks log this meanwhile. */
static char logged[4000];
static int saved_stderr;

static void log_begin(void)
{
	FILE *f = tmpfile();
	fflush(stderr);
	saved_stderr = dup(2);
	dup2(fileno(f), 2);
	fclose(f);
}

static void log_end(void)
{
	ssize_t n;
	fflush(stderr);
	n = pread(2, logged, sizeof logged - 1, 0);
	logged[n > 0 ? n : 0] = '\0';
	dup2(saved_stderr, 2);
	close(saved_stderr);
}

static board *verbs_board(int n, const char *allow)
{
	board *b = board_new(n);
	b->options.allow = allow;
	b->options.fabric = &bent;
	b->options.log = &warnings;
	b->options.timeout = 5;
	bent = *base;
	atomic_store(&calls, 0);
	return b;
}

static void board_end(board *b)
{
	board_free(b);
	if (base == &fake_fabric) {
		unsigned left = 0;

		for (unsigned i = 0; i < FAKE_QUEUES; i++)
			left += (unsigned)fake.queue[i].used;
		ok(!fake.locked && !left, "nothing stays registered, no queue open");
	}
}

/* Sends out, receives in, 60 times, before anything is waited for: more than there
 * is credit for. Short and long ones. */
static void many(board *b, transport *t, int rank)
{
	enum { MANY = 60 };
	static const size_t sizes[] = {1, 4048, 4049, 0, 100000, 300000};
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request out[MANY], in[MANY];
	unsigned char *from[MANY] = {0}, *to[MANY] = {0};
	transport_counts counts[4];
	int peer = !rank;

	for (int i = 0; i < MANY && !b->status[rank]; i++) {
		size_t n = sizes[i % 6];

		from[i] = malloc(n + 1);
		to[i] = calloc(1, n + 1);
		memset(from[i], i + 1, n);
		b->status[rank] = l->send(l->ctx, peer, from[i], n, &out[i], &b->error[rank]);
	}
	if (rank)
		usleep(20000);
	for (int i = 0; i < MANY && !b->status[rank]; i++)
		b->status[rank] = l->recv(l->ctx, peer, to[i], sizes[i % 6], &in[i], &b->error[rank]);
	for (int i = 0; i < MANY && !b->status[rank]; i++) {
		b->status[rank] = l->wait(l->ctx, &in[i], &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &out[i], &b->error[rank]);
		for (size_t k = 0; k < sizes[i % 6]; k++)
			if (to[i][k] != i + 1) {
				atomic_fetch_add(&b->wrong, 1);
				break;
			}
		if (to[i][sizes[i % 6]])
			atomic_fetch_add(&b->wrong, 1);
	}
	b->when[rank] = transport_stats(t, counts);
	if (!b->status[rank])
		snprintf(b->error[rank].text, sizeof b->error[rank].text, "%s %s", transport_kind(t, peer),
		         counts[0].transport);
	channel_close(c);
	for (int i = 0; i < MANY; i++) {
		free(from[i]);
		free(to[i]);
	}
}

static void used(void)
{
	board *b = verbs_board(2, "shm,tcp,verbs");
	b->body = many;
	b->options.allow = "tcp,verbs";
	board_threads(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "more messages than there is credit for");
	is_str(b->error[0].text, "verbs verbs", "over verbs, and the report says so");
	is_int(b->when[0], 1, "and over nothing else");
	board_end(b);
	b = verbs_board(2, "shm,tcp,verbs");
	b->body = many;
	board_threads(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "ranks of a node");
	is_str(b->error[0].text, "shm shm", "use shared memory though both have verbs");
	board_end(b);
}

/* Rank 0 sends `bytes`, rank 1 expects `other`. */
static size_t bytes, other;
static void unequal(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	size_t n = rank ? other : bytes;
	char *buf = calloc(1, n + 1);
	gradcomp_request rq;
	b->when[rank] = board_now();
	b->status[rank] = rank ? l->recv(l->ctx, 0, buf, n, &rq, &b->error[rank])
	                       : l->send(l->ctx, 1, buf, n, &rq, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	/* A short send is done when it is on its way. */
	if (!rank && !b->status[rank]) {
		b->status[rank] = l->recv(l->ctx, 1, buf, 1, &rq, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	}
	b->when[rank] = board_now() - b->when[rank];
	channel_close(c);
	free(buf);
}

static void mismatch(size_t sent, size_t expected)
{
	board *b = verbs_board(2, "tcp,verbs");
	bytes = sent;
	other = expected;
	b->body = unequal;
	board_threads(b);
	ok(b->status[0] == GRADCOMP_ERR_MISMATCH && b->status[1] == GRADCOMP_ERR_MISMATCH,
	   "%zu bytes sent where %zu are expected", sent, expected);
	like(b->error[0].text, "the ranks do not do the same", "the reason");
	ok(in_time(b->when[0], SOON) && in_time(b->when[1], SOON), "at once");
	board_end(b);
}

static int write_wrong_key(void *queue, uint64_t id, const void *at, uint32_t n, uint32_t local, uint64_t to,
                           uint32_t remote, int notify, uint32_t value)
{
	return base->write(queue, id, at, n, local, to, remote ^ 0x5500, notify, value);
}

static void wrong_key(size_t n)
{
	board *b = verbs_board(2, "tcp,verbs");
	bytes = other = n;
	b->body = unequal;
	bent.write = write_wrong_key;
	board_threads(b);
	ok(b->status[0] && b->status[1], "a key that opens nothing, %zu bytes: both ranks fail", n);
	like(b->error[0].text, "rank 0 on ", "rank 0 is told who");
	like(b->error[0].text, "rank 1 on ", "and with whom");
	ok(strstr(b->error[0].text, "its key does not open") || strstr(b->error[0].text, "broke ("), "and why: %s",
	   b->error[0].text);
	ok(in_time(b->when[0], SOON) && in_time(b->when[1], SOON), "within seconds");
	board_end(b);
}

/* Rank 1 leaves, or dies; rank 0 waits for it. */
static void alone(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *buf = calloc(1, bytes + 100);
	gradcomp_request rq;
	b->status[rank] = rank ? l->send(l->ctx, 0, buf, 100, &rq, &b->error[rank])
	                       : l->recv(l->ctx, 1, buf, 100, &rq, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	if (!rank && !b->status[0]) {
		b->when[0] = board_now();
		b->status[0] = other ? l->send(l->ctx, 1, buf, bytes, &rq, &b->error[0])
		                     : l->recv(l->ctx, 1, buf, bytes, &rq, &b->error[0]);
		if (!b->status[0])
			b->status[0] = l->wait(l->ctx, &rq, &b->error[0]);
		b->when[0] = board_now() - b->when[0];
	}
	if (rank == 1 && b->arg) {
		usleep(100000);
		kill(getpid(), SIGKILL);
	}
	channel_close(c);
	free(buf);
}

static void leaves(int sending, size_t n)
{
	board *b = verbs_board(2, "tcp,verbs");
	bytes = n;
	other = (size_t)sending;
	b->body = alone;
	board_threads(b);
	is_int(b->status[0], GRADCOMP_ERR_PEER, "a peer left while %zu bytes were to be %s", n,
	       sending ? "sent" : "received");
	like(b->error[0].text, "rank 1 on ", "who");
	like(b->error[0].text, "left the job", "what");
	is_int(b->status[1], 0, "what it had sent had come");
	board_end(b);
}

static void killed(int n, int sending, size_t n_bytes)
{
	board *b = verbs_board(n, "verbs");
	bytes = n_bytes;
	other = (size_t)sending;
	b->body = alone;
	b->arg = b;
	board_fork(b);
	board_join(b);
	is_int(b->status[0], GRADCOMP_ERR_PEER, "a peer was killed while %zu bytes were to be %s, %d ranks", bytes,
	       sending ? "sent" : "received", n);
	like(b->error[0].text, "rank 1 on ", "who");
	like(b->error[0].text, sending ? "rank 0 was waiting to send" : "rank 0 was waiting to receive",
	     "what was waited for");
	ok(in_time(b->when[0], SOON), "within %.1f s", b->when[0]);
	for (int r = 2; r < n; r++)
		ok(b->stopped[r] || b->status[r], "rank %d knows", r);
	board_end(b);
}

static gradcomp_status open_on_first(const fabric_choice *c, void **device, fabric_info *info, gradcomp_error *err)
{
	if (!atomic_fetch_add(&calls, 1))
		return base->open(c, device, info, err);
	snprintf(err->text, sizeof err->text, "no such luck");
	return err->status = GRADCOMP_ERR_NOTFOUND;
}

static gradcomp_status no_connect(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err)
{
	(void)queue, (void)peer, (void)seconds;
	snprintf(err->text, sizeof err->text, "no route");
	return err->status = GRADCOMP_ERR_IO;
}

static int send_lost(void *queue, uint64_t id, const void *at, uint32_t n, uint32_t local)
{
	(void)queue, (void)id, (void)at, (void)n, (void)local;
	return 0;
}

static gradcomp_status reg_first(void *device, void *at, size_t n, fabric_memory *out, gradcomp_error *err)
{
	if (n == BLOCK_BYTES)
		return base->reg(device, at, n, out, err);
	atomic_fetch_add(&calls, 1);
	snprintf(err->text, sizeof err->text, "cannot register %zu bytes: raise the limit", n);
	return err->status = GRADCOMP_ERR_RANGE;
}

static gradcomp_status reg_none(void *device, void *at, size_t n, fabric_memory *out, gradcomp_error *err)
{
	(void)device, (void)at, (void)out;
	snprintf(err->text, sizeof err->text, "cannot register %zu bytes: raise the limit", n);
	return err->status = GRADCOMP_ERR_RANGE;
}

/* Everything works, over what `kind` says, and the log says why. */
static void fallen(board *b, const char *name, const char *kind, const char *why)
{
	b->body = many;
	log_begin();
	board_threads(b);
	log_end();
	ok(board_well(b) && !atomic_load(&b->wrong), "%s: all arrives", name);
	is_str(b->error[0].text, kind, "over");
	like(logged, why, "the log says why");
	board_end(b);
}

static void fallbacks(void)
{
	board *b = verbs_board(2, "tcp,verbs");
	bent.open = open_on_first;
	fallen(b, "only one rank has a device", "tcp tcp", "verbs is not used: no such luck");
	b = verbs_board(2, "tcp,verbs");
	b->options.fabric = NULL;
	b->options.verbs_missing = "there is no module";
	b->options.verbs_named = 1;
	fallen(b, "no module", "tcp tcp", "verbs is not used: there is no module");
	b = verbs_board(2, "tcp,verbs");
	bent.connect = no_connect;
	fallen(b, "the pair cannot be connected", "tcp tcp", "not verbs: no route");
	b = verbs_board(2, "tcp,verbs");
	bent.send = send_lost;
	fallen(b, "the path test is lost", "tcp tcp", "not verbs: its path test got no answer in 5 s");
	b = verbs_board(2, "tcp,verbs");
	bent.reg = reg_none;
	fallen(b, "no memory can be registered", "tcp tcp", "verbs is not used: cannot register");
	b = verbs_board(2, "tcp,verbs");
	bent.reg = reg_first;
	fallen(b, "long messages cannot be registered", "verbs verbs",
	       "raise the limit; long messages are copied through gradcomp's own memory from now on");
	ok(atomic_load(&calls) > 0 && atomic_load(&calls) <= 2, "which is tried once a rank");
	b = verbs_board(2, "tcp,verbs");
	b->options.frames = FRAMES_MAC;
	b->options.verbs_named = 1;
	if (record_crypto_available())
		fallen(b, "protected records", "tcp tcp", "verbs is not used: security.frames=mac");
	else
		board_free(b);
}

/* Without tcp there is no fallback. */
static void forbidden(void)
{
	board *b = verbs_board(2, "verbs");
	b->body = many;
	bent.reg = reg_none;
	log_begin();
	board_threads(b);
	log_end();
	is_int(b->started[0], GRADCOMP_ERR_RANGE, "transport.allow=verbs where it cannot be used");
	like(b->start_error[0].text, "transport.allow=verbs, but verbs cannot be used: cannot register", "the reason");
	board_end(b);
	b = verbs_board(2, "verbs");
	b->body = many;
	bent.connect = no_connect;
	board_threads(b);
	is_int(b->status[0], GRADCOMP_ERR_UNSUPPORTED, "and where it does not lead to a peer");
	like(b->error[0].text, "(no route), and transport.allow=verbs forbids tcp", "the reason");
	board_end(b);
}

/* A ring of ranks of which each has room for one link only. */
static void ring(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	int right = (rank + 1) % b->n, left = (rank + b->n - 1) % b->n, got = -1;
	transport_counts counts[4];
	gradcomp_request s, r;
	b->status[rank] = l->send(l->ctx, right, &rank, sizeof rank, &s, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->recv(l->ctx, left, &got, sizeof got, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
	if (got != left)
		atomic_fetch_add(&b->wrong, 1);
	b->when[rank] = transport_stats(t, counts);
	channel_close(c);
}

static void small_pool(void)
{
	board *b = verbs_board(4, "tcp,verbs");
	double kinds = 0;
	b->body = ring;
	b->options.verbs_memory = BLOCK_BYTES;
	log_begin();
	board_threads(b);
	log_end();
	ok(board_well(b) && !atomic_load(&b->wrong), "a pool for one link of two");
	for (int r = 0; r < 4; r++)
		kinds = b->when[r] > kinds ? b->when[r] : kinds;
	like(logged, "not verbs: transport.verbs_memory=464K is used up by 1 links of 464K; raise it",
	     "the log says so");
	board_end(b);
}

static void everything(const fabric_ops *f, const char *name)
{
	printf("# %s\n", name);
	base = f;
	used();
	mismatch(100, 200);
	mismatch(100, 200000);
	mismatch(200000, 100);
	mismatch(200000, 300000);
	wrong_key(10000);
	wrong_key(1 << 20);
	leaves(0, 10);
	leaves(0, 200000);
	leaves(1, 200000);
	fallbacks();
	forbidden();
	small_pool();
}

/* With an argument: on this machine's device alone. */
int main(int argc, char **argv)
{
	const fabric_ops *device = real_fabric();
	(void)argv;
	if (argc == 1)
		everything(&fake_fabric, "a fake device");
	if (device) {
		everything(device, "this machine's device");
		for (int n = 2; n <= 4; n += 2) {
			killed(n, 0, 10);
			killed(n, 0, 1 << 20);
			killed(n, 1, 1 << 20);
		}
	} else {
		skip("no RDMA device here", "this machine's device");
	}
	return done_testing();
}
