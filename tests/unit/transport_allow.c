/* transport.allow: every set of transports, what is chosen of it, and what a user
 * is told of what is not. */
#include "tests/support/transport_ranks.h"

#define RANKS 3

static const struct {
	const char *allow, *kind; /* "": the ranks cannot start */
} sets[] = {
	{"shm", "shm"},       {"tcp", "tcp"},       {"shm,tcp", "shm"},       {"tcp,shm", "shm"},
	{"shm,verbs", "shm"}, {"tcp,verbs", "tcp"}, {"shm,tcp,verbs", "shm"}, {"verbs", ""},
};

static void body(board *b, transport *t, int rank)
{
	const char *kind = b->arg;
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	int to = (rank + 1) % b->n, from = (rank + b->n - 1) % b->n, in = -1;
	gradcomp_request s, r;
	transport_counts counts[4];
	link_map_row row[4];
	int n = transport_link_map(t, row), found = 0;
	b->status[rank] = l->recv(l->ctx, from, &in, sizeof in, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->send(l->ctx, to, &rank, sizeof rank, &s, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
	if (in != from || transport_stats(t, counts) != 1 || strcmp(counts[0].transport, kind))
		atomic_fetch_add(&b->wrong, 1);
	for (int i = 0; i < n; i++) {
		int used = !strcmp(row[i].transport, kind);

		found += used;
		if (row[i].pairs != (used ? RANKS * (RANKS - 1) / 2 : 0) || (row[i].why_not == NULL) != used)
			atomic_fetch_add(&b->wrong, 1);
		if (!used && (strstr(b->options.allow, row[i].transport) != NULL) ==
		                     !strcmp(row[i].why_not, "not allowed by transport.allow"))
			atomic_fetch_add(&b->wrong, 1);
	}
	for (int i = 0; i < RANKS; i++)
		for (int k = 0; k < RANKS; k++)
			if (strcmp(transport_pair(t, i, k), i == k ? "self" : kind))
				atomic_fetch_add(&b->wrong, 1);
	if (n < 2 || found != 1)
		atomic_fetch_add(&b->wrong, 1);
	channel_close(c);
}

int main(void)
{
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		board *b = board_new(RANKS);

		b->options.allow = sets[i].allow;
		b->arg = (void *)(uintptr_t)sets[i].kind;
		b->body = body;
		board_threads(b);
		if (*sets[i].kind) {
			ok(board_well(b) && !atomic_load(&b->wrong), "allow=%s: %s between ranks of a machine",
			   sets[i].allow, sets[i].kind);
		} else {
			for (int r = 0; r < RANKS; r++)
				ok(b->started[r] < 0, "allow=%s without a device: rank %d cannot start", sets[i].allow,
				   r);
			like(b->start_error[0].text, "transport.allow=verbs", "and says which setting it is");
		}
		board_free(b);
	}
	return done_testing();
}
