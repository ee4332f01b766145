/* Ranks whose connections carry records: everything arrives, nothing can be read in
 * transit when it is encrypted, and a change in transit ends the job, naming the two
 * ranks. */
#include "tests/support/transport_ranks.h"

#include "operators/operator_tables.h"
#include "tests/support/relay.h"

#define LONGEST 120.0 /* seconds that ranks talk which nothing disturbs */

static const size_t sizes[] = {0, 1, 7, 16, 4096, 65471, 65472, 65473, 65536, 100003, 1000000};
#define NSIZES (sizeof sizes / sizeof sizes[0])
static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
static const char needle[] = "a gradient that nobody else should see";

/* All sizes to the other rank and back, at once; then sums on the fly. */
static void exchange(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 5);
	const gradcomp_links *l = channel_links(c);
	static unsigned char out[NSIZES][1000000], in[NSIZES][1000000];
	static int64_t acc[50001], add[50001];
	gradcomp_request rq[2 * NSIZES], r, s;
	int peer = !rank;
	gradcomp_status st = GRADCOMP_OK;
	for (int round = 0; round < 3 && !st; round++) {
		for (size_t i = 0; i < NSIZES && !st; i++) {
			for (size_t k = 0; k < sizes[i]; k++)
				out[i][k] = (unsigned char)((k * 31 + i) ^ (k >> 8) ^ (unsigned)(rank + 2 * round));
			if (sizes[i] >= sizeof needle)
				memcpy(out[i] + (sizes[i] - sizeof needle) / 2, needle, sizeof needle);
			memset(in[i], 0xee, sizes[i]);
			st = l->send(l->ctx, peer, out[i], sizes[i], &rq[2 * i], &b->error[rank]);
			if (!st)
				st = l->recv(l->ctx, peer, in[i], sizes[i], &rq[2 * i + 1], &b->error[rank]);
		}
		for (size_t i = 0; i < 2 * NSIZES && !st; i++)
			st = l->wait(l->ctx, &rq[i], &b->error[rank]);
		for (size_t i = 0; i < NSIZES && !st; i++)
			for (size_t k = 0; k < sizes[i]; k++) {
				size_t at = sizes[i] >= sizeof needle ? (sizes[i] - sizeof needle) / 2 : sizes[i];
				unsigned char want =
					(unsigned char)((k * 31 + i) ^ (k >> 8) ^ (unsigned)(peer + 2 * round));

				if (k >= at && k < at + sizeof needle)
					want = (unsigned char)needle[k - at];
				if (in[i][k] != want)
					atomic_fetch_add(&b->wrong, 1);
			}
	}
	for (int k = 0; k < 50001; k++) {
		acc[k] = k;
		add[k] = 1000 * (rank + 1) + k;
	}
	for (int n = 50001; n > 0 && !st; n /= 7) {
		st = l->send(l->ctx, peer, add, (size_t)n * sizeof add[0], &s, &b->error[rank]);
		if (!st)
			st = l->recv_reduce(l->ctx, peer, acc, (size_t)n, GRADCOMP_I64, GRADCOMP_SUM, &r,
			                    &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &r, &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &s, &b->error[rank]);
	}
	for (int k = 0; k < 50001 && !st; k++) {
		int64_t want = k;

		for (int n = 50001; n > 0; n /= 7)
			want += k < n ? 1000 * (peer + 1) + k : 0;
		if (acc[k] != want)
			atomic_fetch_add(&b->wrong, 1);
	}
	b->status[rank] = st;
	channel_close(c);
}

/* Words and answers, until something happens. */
static void talk(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 6);
	const gradcomp_links *l = channel_links(c);
	static unsigned char x[100000], y[100000];
	gradcomp_request r, s;
	gradcomp_status st = GRADCOMP_OK;
	double until = board_now() + LONGEST;
	for (int i = 0; !st && board_now() < until; i++) {
		size_t n = i % 2 ? 100 : sizeof x;

		memset(x, i + rank, n);
		st = l->send(l->ctx, !rank, x, n, &s, &b->error[rank]);
		if (!st)
			st = l->recv(l->ctx, !rank, y, n, &r, &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &r, &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &s, &b->error[rank]);
		for (size_t k = 0; k < n && !st; k++)
			if (y[k] != (unsigned char)(i + !rank))
				atomic_fetch_add(&b->wrong, 1);
		/* The control tree has its say. */
		if (i % 8 == 7)
			usleep(130000);
	}
	b->status[rank] = st;
	b->when[rank] = board_now();
	channel_close(c);
}

/* Two ranks with rank 1's connections to rank 0 through the relay. */
static board *through(relay *r, frames_mode mode, int streams, void (*body)(board *, transport *, int))
{
	board *b = board_new(2);
	b->options.allow = "tcp";
	b->options.frames = mode;
	b->options.streams = streams;
	b->options.operators = operators_cpu();
	b->late_rank = 1;
	b->body = body;
	board_fork(b);
	while (atomic_load(&b->there) < 2)
		usleep(1000);
	relay_start(r, relay_endpoint(b->endpoint[0], sizeof b->endpoint[0], 0));
	relay_endpoint(b->endpoint[0], sizeof b->endpoint[0], r->port);
	atomic_store(&b->late, 1);
	board_join(b);
	relay_stop(r);
	return b;
}

static void in_order(frames_mode mode, int streams)
{
	relay r = {.needle = needle};
	board *b = through(&r, mode, streams, exchange);
	ok(board_well(b), "%s, %d streams: all sizes there and back, and sums", record_crypto_mode_name(mode), streams);
	is_int(b->wrong, 0, "%s, %d streams: all bytes right", record_crypto_mode_name(mode), streams);
	is_int(atomic_load(&r.seen), mode != FRAMES_ENCRYPT, "%s, %d streams: in transit they can%s be read",
	       record_crypto_mode_name(mode), streams, mode == FRAMES_ENCRYPT ? "not" : "");
	board_free(b);
}

static void between(const char *name, frames_mode mode, int what, int kind, int back, int record)
{
	relay r = {.what = what, .kind = kind, .back = back, .record = record};
	board *b = through(&r, mode, 1, talk);
	int victim = back;
	char culprit[32];
	snprintf(culprit, sizeof culprit, "rank %d on ", !victim);
	ok(atomic_load(&r.done), "%s: it was done", name);
	ok(b->status[0] < 0 && b->status[1] < 0, "%s: both ranks end", name);
	if (what == RELAY_CUT)
		ok(strstr(b->error[0].text, "closed") || strstr(b->error[1].text, "closed"),
		   "%s: a connection has closed", name);
	else
		like(b->error[victim].text, "was changed, repeated or left out on its way (security.frames)", name);
	like(b->error[victim].text, what == RELAY_CUT ? "rank " : culprit, name);
	if (!strstr(b->error[victim].text, culprit))
		printf("# %s\n", b->error[victim].text);
	is_int(b->wrong, 0, "%s: nothing wrong was taken for right", name);
	board_free(b);
}

/* Ranks with different settings say so instead of waiting for each other. */
static void mismatch(void)
{
	transport_options o[2];
	const char *endpoints[2];
	unsigned char secret[TRANSPORT_SECRET_BYTES] = {1};
	gradcomp_error err;
	transport *t[2];
	board *b = board_new(2);
	b->options.timeout = 5;
	for (int i = 0; i < 2; i++) {
		o[i] = b->options;
		o[i].rank = i;
		o[i].frames = i ? FRAMES_ENCRYPT : FRAMES_MAC;
		if (transport_listen(&o[i], &t[i], &err))
			printf("# %s\n", err.text);
		endpoints[i] = transport_endpoint(t[i]);
	}
	is_int(transport_start(t[0], endpoints, secret, &err), GRADCOMP_ERR_MISMATCH,
	       "another security.frames is a mismatch");
	like(err.text, "rank 1 on ", "it names the rank");
	like(err.text, "security.frames=encrypt, rank 0 has mac", "and both values");
	transport_stop(t[0], NULL);
	transport_stop(t[1], NULL);
	board_free(b);
}

int main(void)
{
	if (!record_crypto_available()) {
		transport_options o = {.nranks = 2,
		                       .timeout = 1,
		                       .wait_timeout = 1,
		                       .streams = 1,
		                       .chunk = 65536,
		                       .frames = FRAMES_MAC,
		                       .log = &quiet};
		gradcomp_error err;
		transport *t;

		is_int(transport_listen(&o, &t, &err), GRADCOMP_ERR_UNSUPPORTED,
		       "without libsodium the setting is refused");
		like(err.text, "security.frames=mac: this gradcomp was built without libsodium", "in words");
		return done_testing();
	}
	mismatch();
	in_order(FRAMES_NONE, 1);
	for (int streams = 1; streams < 4; streams += 2) {
		in_order(FRAMES_MAC, streams);
		in_order(FRAMES_ENCRYPT, streams);
	}
	between("a bit flips", FRAMES_MAC, RELAY_FLIP, HELLO_TCP, 0, 5);
	between("a bit flips on the way back", FRAMES_ENCRYPT, RELAY_FLIP, HELLO_TCP, 1, 4);
	between("a record is repeated", FRAMES_MAC, RELAY_REPEAT, HELLO_TCP, 0, 3);
	between("a record is left out", FRAMES_ENCRYPT, RELAY_DROP, HELLO_TCP, 0, 3);
	between("records change places", FRAMES_MAC, RELAY_SWAP, HELLO_TCP, 0, 2);
	between("the connection is cut", FRAMES_MAC, RELAY_CUT, HELLO_TCP, 0, 3);
	between("a heartbeat is changed", FRAMES_MAC, RELAY_FLIP, HELLO_CONTROL, 0, 0);
	between("a heartbeat is repeated", FRAMES_ENCRYPT, RELAY_REPEAT, HELLO_CONTROL, 1, 0);
	return done_testing();
}
