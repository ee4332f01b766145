/* star: a collective. All send to rank 0, which adds up and sends back: two messages on the way, so
 * it suits short payloads of few ranks, and rank 0's link is the limit for longer ones.
 *
 * Pieces of `chunk` bytes keep the memory small. A transfer is posted and then waited for;
 * transfers between two ranks match in the order in which they were posted.
 */
#include <gradcomp/collective.h>

typedef struct star {
	const gradcomp_host *host;
	const gradcomp_links *links;
	gradcomp_request *requests; /* one for every rank */
	char *piece;                /* rank 0: what has come and is to be added */
	size_t chunk;               /* bytes, a multiple of 8 */
} star;

static void destroy(void *instance)
{
	star *s = instance;
	if (!s)
		return;
	s->host->release(s->requests);
	s->host->release(s->piece);
	s->host->release(s);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	size_t chunk = links->chunk >= 4096 ? links->chunk / 8 * 8 : 4096;
	star *s = host->alloc(sizeof *s);
	(void)values;
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "star: no memory");
	*s = (star){.host = host, .links = links, .chunk = chunk};
	s->requests = host->alloc((size_t)links->nranks * sizeof *s->requests);
	s->piece = host->alloc(chunk);
	if (!s->requests || !s->piece) {
		destroy(s);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "star: no memory for a piece of %zu bytes", chunk);
	}
	*instance = s;
	return GRADCOMP_OK;
}

static gradcomp_status send_to(const star *s, int peer, const void *buf, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = s->links;
	gradcomp_status st = l->send(l->ctx, peer, buf, bytes, &s->requests[peer], err);
	return st ? st : l->wait(l->ctx, &s->requests[peer], err);
}

static gradcomp_status recv_from(const star *s, int peer, void *buf, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = s->links;
	gradcomp_status st = l->recv(l->ctx, peer, buf, bytes, &s->requests[peer], err);
	return st ? st : l->wait(l->ctx, &s->requests[peer], err);
}

/* From rank 0 to all others, at the same time. After a failure nothing has to be waited for. */
static gradcomp_status give_out(const star *s, const void *buf, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = s->links;
	gradcomp_status st = GRADCOMP_OK;
	for (int r = 1; r < l->nranks && !st; r++)
		st = l->send(l->ctx, r, buf, bytes, &s->requests[r], err);
	for (int r = 1; r < l->nranks && !st; r++)
		st = l->wait(l->ctx, &s->requests[r], err);
	return st;
}

/* Rank 0 adds in the order of ranks: the same bits in every run. */
static gradcomp_status sum_piece(const star *s, char *acc, size_t bytes, uint64_t count, gradcomp_dtype dtype,
                                 gradcomp_op op, double scale, gradcomp_error *err)
{
	const gradcomp_operators *ops = s->host->operators;
	gradcomp_status st = GRADCOMP_OK;
	for (int r = 1; r < s->links->nranks && !st; r++) {
		st = recv_from(s, r, s->piece, bytes, err);
		if (!st && ops->reduce(NULL, acc, s->piece, count, dtype, op))
			st = s->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
			                   "star: operation %d has no meaning for element type %d", op, dtype);
	}
	if (!st && op == GRADCOMP_SUM && scale != 1)
		ops->scale_as(NULL, acc, scale, count,
		              dtype); /* integers are not scaled: UNSUPPORTED, and left alone */
	return st ? st : give_out(s, acc, bytes, err);
}

static gradcomp_status allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err)
{
	const star *s = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	uint64_t most = s->chunk / size;
	gradcomp_status st = GRADCOMP_OK;
	for (uint64_t at = 0, n; at < count && !st; at += n) {
		char *piece = (char *)buf + at * size;
		n = count - at < most ? count - at : most;
		if (!s->links->rank) {
			st = sum_piece(s, piece, n * size, n, dtype, op, scale, err);
		} else {
			st = send_to(s, 0, piece, n * size, err);
			if (!st)
				st = recv_from(s, 0, piece, n * size, err);
		}
	}
	return st;
}

/* Blocks of 0 bytes are sent by nobody: both sides know all lengths. */
static gradcomp_status allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	const star *s = instance;
	int rank = s->links->rank;
	uint64_t begin = 0, all = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (int r = 0; r < s->links->nranks; r++) {
		if (!rank && r && bytes[r] && !st)
			st = recv_from(s, r, (char *)buf + all, bytes[r], err);
		begin = r == rank ? all : begin;
		all += bytes[r];
	}
	if (!rank)
		return st || !all ? st : give_out(s, buf, all, err);
	if (bytes[rank])
		st = send_to(s, 0, (char *)buf + begin, bytes[rank], err);
	return st || !all ? st : recv_from(s, 0, buf, all, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_collective_v1,
                 .name = "star",
                 .version = "1.0",
                 .summary = "all send to rank 0, which adds up and sends back",
                 .licence = "MIT"},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER,
	.create = create,
	.destroy = destroy,
	.allreduce = allreduce,
	.allgather = allgather,
};
