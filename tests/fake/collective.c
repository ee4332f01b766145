/* The collectives that take device memory on their own: every primitive on device memory and on host memory
 * against what it should give, in float64; odd sizes, unequal blocks, coded sums. */
#include "tests/fake/device_ranks.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>

#include "gradcomp/operators.h"
#include "config/spec.h"
#include "plugin/spec_table.h"
#include "plugin/plugin_host.h"

static const struct gradcomp_collective_v1 *nccl;
static int scattered; /* ranks of a node are no neighbours */
static const gradcomp_operators *ops;
static gradcomp_host host;
static uint64_t seed;

static double number(int rank, uint64_t i)
{
	uint64_t z = seed + (uint64_t)rank * 1000003 + i * 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (double)(int64_t)((z ^ (z >> 31)) >> 40) / 4096 - 2048;
}

/* A buffer of `bytes`, where asked. */
typedef struct buffer {
	char *at, *copy;
	size_t bytes;
	int on_device;
} buffer;

static cudaStream_t queue;

static buffer buffer_new(size_t bytes, int on_device)
{
	buffer b = {.copy = calloc(1, bytes + 1), .bytes = bytes, .on_device = on_device};
	void *p = b.copy;
	if (on_device && cudaMalloc(&p, bytes + 1))
		exit(1);
	b.at = p;
	return b;
}

static void buffer_up(buffer *b)
{
	if (b->on_device)
		cudaMemcpyAsync(b->at, b->copy, b->bytes, cudaMemcpyDefault, queue);
}

static char *buffer_down(buffer *b)
{
	if (b->on_device)
		cudaMemcpyAsync(b->copy, b->at, b->bytes, cudaMemcpyDefault, queue);
	return b->copy;
}

static void buffer_free(buffer *b)
{
	if (b->on_device)
		cudaFree(b->at);
	free(b->copy);
}

static void put(buffer *b, uint64_t i, gradcomp_dtype t, double v)
{
	float f = (float)v;
	if (t == GRADCOMP_F32)
		memcpy(b->copy + 4 * i, &f, 4);
	else if (t == GRADCOMP_F64)
		memcpy(b->copy + 8 * i, &v, 8);
	else if (t == GRADCOMP_I64)
		((int64_t *)(void *)b->copy)[i] = (int64_t)v;
	else
		host.operators->cast_from_f32(NULL, b->copy + 2 * i, &f, 1, t, 0);
}

static double get(const buffer *b, uint64_t i, gradcomp_dtype t)
{
	float f = 0;
	double v;
	if (t == GRADCOMP_I64)
		return (double)((int64_t *)(void *)b->copy)[i];
	if (t == GRADCOMP_F64) {
		memcpy(&v, b->copy + 8 * i, 8);
		return v;
	}
	if (t == GRADCOMP_F32)
		memcpy(&f, b->copy + 4 * i, 4);
	else
		host.operators->cast_to_f32(NULL, &f, b->copy + 2 * i, 1, t);
	return f;
}

static const uint64_t sizes[] = {0, 1, 7, 4097, 70001};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_BF16, GRADCOMP_F64, GRADCOMP_I64};

static uint64_t block_of(int r, uint64_t n)
{
	return r % 3 == 1 ? 0 : n + (uint64_t)r;
}

typedef struct bench {
	void *c;
	int rank, P, failed;
	gradcomp_error err;
	uint64_t mark;
} bench;

static void expect(bench *b, int right, const char *what, uint64_t n, int on_device)
{
	if (right)
		return;
	if (!b->failed)
		printf("# rank %d: %s of %llu in %s memory is wrong (%s)\n", b->rank, what, (unsigned long long)n,
		       on_device ? "device" : "host", b->err.text);
	b->failed = 1;
}

static void mark(bench *b, const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b->mark = (b->mark ^ (unsigned char)p[i]) * 0x100000001b3u;
}

static void try_allreduce(bench *b, uint64_t n, gradcomp_dtype t, gradcomp_op op, double scale, int dev)
{
	size_t bytes = n * gradcomp_dtype_bytes(t);
	buffer x = buffer_new(bytes, dev);
	int right = 1;
	for (uint64_t i = 0; i < n; i++)
		put(&x, i, t, t == GRADCOMP_BF16 ? floor(number(b->rank, i) / 64) : floor(number(b->rank, i)));
	buffer_up(&x);
	gradcomp_status st = nccl->allreduce(b->c, x.at, n, t, op, scale, &b->err);
	buffer_down(&x);
	for (uint64_t i = 0; i < n && !st; i++) {
		double want = op == GRADCOMP_SUM ? 0 : -INFINITY;
		for (int r = 0; r < b->P; r++) {
			double v = t == GRADCOMP_BF16 ? floor(number(r, i) / 64) : floor(number(r, i));
			want = op == GRADCOMP_SUM ? want + v : fmax(want, v);
		}
		want *= scale;
		right &= fabs(get(&x, i, t) - want) <= (t == GRADCOMP_BF16 ? 0.02 * fabs(want) + 0.5 : 1e-3);
	}
	mark(b, x.copy, bytes);
	expect(b, right && !st, "an all-reduce", n, dev);
	buffer_free(&x);
}

static void try_blocks(bench *b, uint64_t n, int equal, int dev)
{
	uint64_t counts[MAX_RANKS], bytes[MAX_RANKS], all = 0, from = 0;
	int right = 1;
	for (int r = 0; r < b->P; r++) {
		counts[r] = equal ? n : block_of(r, n);
		bytes[r] = counts[r] * 4;
		from += r < b->rank ? counts[r] : 0;
		all += counts[r];
	}
	buffer x = buffer_new(all * 4, dev);
	for (uint64_t i = 0; i < counts[b->rank]; i++)
		put(&x, from + i, GRADCOMP_F32, number(b->rank, i));
	buffer_up(&x);
	gradcomp_status st = nccl->allgather(b->c, x.at, bytes, &b->err);
	buffer_down(&x);
	for (uint64_t r = 0, at = 0; (int)r < b->P; at += counts[r++])
		for (uint64_t i = 0; i < counts[r]; i++)
			right &= get(&x, at + i, GRADCOMP_F32) == (double)(float)number((int)r, i);
	mark(b, x.copy, all * 4);
	expect(b, right && !st, "an all-gather", n, dev);

	for (uint64_t i = 0; i < all; i++)
		put(&x, i, GRADCOMP_F32, number(b->rank, i));
	buffer_up(&x);
	st = nccl->reduce_scatter(b->c, x.at, counts, GRADCOMP_F32, GRADCOMP_SUM, 0.5, &b->err);
	buffer_down(&x);
	right = 1;
	for (uint64_t i = from; i < from + counts[b->rank]; i++) {
		double want = 0;
		for (int r = 0; r < b->P; r++)
			want += number(r, i) / 2;
		right &= fabs(get(&x, i, GRADCOMP_F32) - want) < 1e-2;
	}
	expect(b, right && !st, "a reduce-scatter", n, dev);
	buffer_free(&x);
}

static void try_alltoall(bench *b, uint64_t n, int dev)
{
	uint64_t in[MAX_RANKS], out[MAX_RANKS], sent = 0, came = 0;
	int right = 1;
	for (int r = 0; r < b->P; r++) {
		in[r] = 4 * (n + (uint64_t)(b->rank * r) % 5);
		out[r] = 4 * (n + (uint64_t)(b->rank * r) % 5);
		sent += in[r], came += out[r];
	}
	buffer x = buffer_new(sent, dev), y = buffer_new(came, dev);
	for (uint64_t r = 0, at = 0; (int)r < b->P; at += in[r++] / 4)
		for (uint64_t i = 0; i < in[r] / 4; i++)
			put(&x, at + i, GRADCOMP_F32, number(b->rank * 16 + (int)r, i));
	buffer_up(&x);
	gradcomp_status st = nccl->alltoall(b->c, x.at, in, y.at, out, &b->err);
	buffer_down(&y);
	for (uint64_t r = 0, at = 0; (int)r < b->P; at += out[r++] / 4)
		for (uint64_t i = 0; i < out[r] / 4; i++)
			right &= get(&y, at + i, GRADCOMP_F32) == (double)(float)number((int)r * 16 + b->rank, i);
	expect(b, right && !st, "an all-to-all", n, dev);
	buffer_free(&x);
	buffer_free(&y);
}

static void try_broadcast(bench *b, uint64_t n, int dev)
{
	int root = (int)(n % (uint64_t)b->P), right = 1;
	buffer z = buffer_new(4 * n, dev);
	for (uint64_t i = 0; i < n; i++)
		put(&z, i, GRADCOMP_F32, number(b->rank, i));
	buffer_up(&z);
	gradcomp_status st = nccl->broadcast(b->c, z.at, 4 * n, root, &b->err);
	buffer_down(&z);
	for (uint64_t i = 0; i < n; i++)
		right &= get(&z, i, GRADCOMP_F32) == (double)(float)number(root, i);
	mark(b, z.copy, 4 * n);
	expect(b, right && !st, "a broadcast", n, dev);
	buffer_free(&z);
}

/* Blocks of 8-bit integers, on whichever side the floats are. */
typedef struct code_place {
	const gradcomp_operators *op;
	void *queue;
	gradcomp_quantiser q;
} code_place;

static uint64_t code_bound(void *ctx, uint64_t n)
{
	const code_place *p = ctx;
	return p->op->quantised_bytes(&p->q, n);
}

static gradcomp_status code(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err)
{
	const code_place *p = ctx;
	(void)counter, (void)err;
	p->op->quantise(p->queue, out, in, n, &p->q);
	*bytes = code_bound(ctx, n);
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n, gradcomp_error *err)
{
	const code_place *p = ctx;
	(void)bytes, (void)err;
	p->op->dequantise(p->queue, out, in, n, &p->q);
	return GRADCOMP_OK;
}

static gradcomp_status decode_add(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err)
{
	const code_place *p = ctx;
	(void)bytes, (void)err;
	p->op->dequantise_add(p->queue, out, 1, in, n, &p->q);
	return GRADCOMP_OK;
}

/* Checks that the output and all residuals together are what went in: of all n numbers, or with counts[] of those
 * from `from` to `to`, which are this rank's block. */
static void try_coded_sum(bench *b, const gradcomp_codec *codec, const uint64_t *counts, uint64_t n, uint64_t from,
                          uint64_t to, int dev)
{
	buffer x = buffer_new(4 * n, dev), e = buffer_new(4 * n, dev), lost = buffer_new(4 * n, 0);
	float *at, *residual;
	double scale = 1.0 / b->P;
	int right = 1;
	for (uint64_t i = 0; i < n; i++)
		put(&x, i, GRADCOMP_F32, number(b->rank, i));
	memset(e.copy, 0x7f, e.bytes);
	buffer_up(&x);
	buffer_up(&e);
	at = (float *)(void *)x.at, residual = (float *)(void *)e.at;
	gradcomp_status st = counts ? nccl->coded_reduce_scatter(b->c, at, counts, scale, codec, 1, residual, &b->err)
	                            : nccl->coded_allreduce(b->c, at, n, scale, codec, 1, residual, &b->err);
	buffer_down(&x);
	memcpy(lost.copy, buffer_down(&e), 4 * n);
	if (!st)
		st = nccl->allreduce(b->c, lost.at, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &b->err);
	for (uint64_t i = from; i < to && !st; i++) {
		double want = 0;
		for (int r = 0; r < b->P; r++)
			want += (float)number(r, i);
		double off = get(&x, i, GRADCOMP_F32) / scale + get(&lost, i, GRADCOMP_F32) - want;
		right &= fabs(off) < 0.02 && fabs(get(&lost, i, GRADCOMP_F32)) < 100 * b->P;
	}
	if (!counts)
		mark(b, x.copy, 4 * n);
	expect(b, right && !st, counts ? "a coded reduce-scatter" : "a coded all-reduce", n, dev);
	buffer_free(&x);
	buffer_free(&e);
	buffer_free(&lost);
}

static void try_coded(bench *b, uint64_t n, int dev)
{
	code_place place = {.op = dev ? ops : host.operators,
	                    .queue = dev ? queue : NULL,
	                    .q = {.struct_size = sizeof place.q, .bits = 8, .levels = 127, .block = 256}};
	const gradcomp_codec codec = {.struct_size = sizeof codec,
	                              .ctx = &place,
	                              .bound = code_bound,
	                              .code = code,
	                              .decode = decode,
	                              .decode_add = decode_add};
	try_coded_sum(b, &codec, NULL, n, 0, n, dev);

	uint64_t counts[MAX_RANKS], all = 0, from = 0;
	if (!(nccl->serves & GRADCOMP_CAN_CODED_ALLGATHER))
		return;
	for (int r = 0; r < b->P; r++) {
		counts[r] = block_of(r, n);
		from += r < b->rank ? counts[r] : 0;
		all += counts[r];
	}
	buffer x = buffer_new(4 * all, dev), e = buffer_new(4 * counts[b->rank], dev);
	for (uint64_t i = 0; i < counts[b->rank]; i++)
		put(&x, from + i, GRADCOMP_F32, number(b->rank, i));
	buffer_up(&x);
	gradcomp_status st =
		nccl->coded_allgather(b->c, (float *)(void *)x.at, counts, &codec, 1, (float *)(void *)e.at, &b->err);
	buffer_down(&x);
	buffer_down(&e);
	int right = 1;
	for (uint64_t r = 0, at = 0; (int)r < b->P; at += counts[r++])
		for (uint64_t i = 0; i < counts[r]; i++) {
			double off = get(&x, at + i, GRADCOMP_F32) - (float)number((int)r, i);
			right &= fabs(off) < 20;
			right &= (int)r != b->rank || fabs(off + get(&e, i, GRADCOMP_F32)) < 1e-3;
		}
	mark(b, x.copy, 4 * all);
	expect(b, right && !st, "a coded all-gather", n, dev);
	buffer_free(&x);
	buffer_free(&e);
	if (nccl->serves & GRADCOMP_CAN_CODED_REDUCE_SCATTER)
		try_coded_sum(b, &codec, counts, all, from, from + counts[b->rank], dev);
}

/* Merges two payloads by their elementwise sum, which stands for what a compressor makes of them; the host's tree
 * makes the same of them, to the bit. */
static gradcomp_status merge_sums(void *ctx, const gradcomp_payload *a, const gradcomp_payload *b,
                                  gradcomp_payload *out, gradcomp_error *err)
{
	const gradcomp_operators *op = *(const int *)ctx ? ops : host.operators;
	void *on = *(const int *)ctx ? queue : NULL;
	(void)err;
	op->copy(on, out->data, a->data, a->bytes);
	return op->reduce(on, out->data, b->data, a->bytes / sizeof(float), GRADCOMP_F32, GRADCOMP_SUM);
}

static void try_merge(bench *b, uint64_t n, int dev)
{
	uint64_t bytes = n * sizeof(float);
	buffer x = buffer_new(bytes, dev), same = buffer_new(bytes, 0);
	int on = dev, off = 0, good;
	gradcomp_merger there = {.struct_size = sizeof there, .ctx = &on, .merge = merge_sums},
			here = {.struct_size = sizeof here, .ctx = &off, .merge = merge_sums};
	for (uint64_t i = 0; i < n; i++) {
		float v = (float)number(b->rank, i);
		memcpy(x.copy + 4 * i, &v, 4);
		memcpy(same.copy + 4 * i, &v, 4);
	}
	buffer_up(&x);
	gradcomp_payload p = {x.at, bytes, bytes}, q = {same.at, bytes, bytes};
	good = !nccl->merge(b->c, &p, bytes, &there, &b->err) && !nccl->merge(b->c, &q, bytes, &here, &b->err);
	buffer_down(&x);
	cudaStreamSynchronize(queue);
	good = good && !memcmp(x.copy, same.copy, bytes);
	for (uint64_t i = 0; good && i < n; i++) {
		double sum = 0, size = 0;
		float v;
		memcpy(&v, x.copy + 4 * i, 4);
		for (int r = 0; r < b->P; r++)
			sum += number(r, i), size += fabs(number(r, i));
		good = fabs(v - sum) <= size * 0x1p-22;
	}
	expect(b, good, "merge", n, dev);
	buffer_free(&x);
	buffer_free(&same);
}

/* The node's sums, those of all holders of each of this rank's shards, and the whole to everybody. */
static void try_shards(bench *b, uint64_t n, int dev)
{
	buffer x = buffer_new(4 * n, dev);
	gradcomp_shard shard = {.rank = 0};
	void *holders;
	int right = 1;
	for (uint64_t i = 0; i < n; i++)
		put(&x, i, GRADCOMP_F32, floor(number(b->rank, i)));
	buffer_up(&x);
	gradcomp_status st = nccl->local_reduce_scatter(b->c, (float *)(void *)x.at, n, 0.5, &b->err);
	for (uint32_t k = 0; !st && shard.rank >= 0; k++) {
		shard = (gradcomp_shard){.struct_size = sizeof shard};
		st = nccl->shard_at(b->c, k, n, &shard, &holders, &b->err);
		if (!st && shard.rank >= 0)
			st = nccl->shard_allreduce(holders, x.at + 4 * shard.begin, shard.numel, GRADCOMP_F32,
			                           GRADCOMP_SUM, 1.0, &b->err);
	}
	if (!st)
		st = nccl->local_allgather(b->c, (float *)(void *)x.at, n, &b->err);
	buffer_down(&x);
	for (uint64_t i = 0; i < n && !st; i++) {
		double want = 0;
		for (int r = 0; r < b->P; r++)
			want += 0.5 * floor(number(r, i));
		right &= fabs(get(&x, i, GRADCOMP_F32) - want) < 1e-3;
	}
	mark(b, x.copy, 4 * n);
	expect(b, right && !st, "shards", n, dev);
	buffer_free(&x);
}

static void all_primitives(bench *b, int s, int dev)
{
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		try_allreduce(b, sizes[s], types[t], GRADCOMP_SUM, types[t] == GRADCOMP_I64 ? 1 : 1.0 / b->P, dev);
		try_allreduce(b, sizes[s], types[t], GRADCOMP_MAX, 1.0, dev);
	}
	try_blocks(b, sizes[s], 1, dev);
	try_blocks(b, sizes[s], 0, dev);
	if (nccl->serves & GRADCOMP_CAN_ALLTOALL)
		try_alltoall(b, sizes[s], dev);
	try_broadcast(b, sizes[s], dev);
	try_coded(b, sizes[s], dev);
	if (nccl->serves & GRADCOMP_CAN_MERGE)
		try_merge(b, sizes[s], dev);
	if (nccl->serves & GRADCOMP_CAN_SHARD)
		try_shards(b, sizes[s], dev);
	expect(b, !nccl->barrier(b->c, &b->err), "a barrier", 0, dev);
}

/* The job's links, or such as say that every other rank is on another node. */
static const gradcomp_links *divided(const gradcomp_links *links, gradcomp_links *apart)
{
	static int32_t node[MAX_RANKS];
	if (!scattered)
		return links;
	for (int r = 0; r < links->nranks; r++)
		node[r] = r % 2;
	memcpy(apart, links, links->struct_size < sizeof *apart ? links->struct_size : sizeof *apart);
	apart->nnodes = 2;
	apart->node = node;
	return apart;
}

/* A second instance, whose calls return when their work is on the stream. */
static void enqueued(bench *b, gradcomp_group *w, const gradcomp_value *values)
{
	static const struct timespec nap = {.tv_nsec = 1000000};
	const gradcomp_links *links;
	gradcomp_links apart = {0};
	void *first = b->c;
	int busy = 1;
	gradcomp_status st = gradcomp_links_open(w, &links, &b->err);
	if (!st)
		st = nccl->create(&host, values, divided(links, &apart), &b->c, &b->err);
	if (!st)
		st = nccl->set_queue(b->c, queue, &b->err);
	if (!st)
		st = nccl->enqueue(b->c, 1, &b->err);
	expect(b, !st, "a second instance", 0, 1);
	for (int s = 0; !st && s < SIZES; s++)
		all_primitives(b, s, 1);
	while (!st && busy) {
		st = nccl->watch(b->c, &busy, &b->err);
		nanosleep(&nap, NULL);
	}
	expect(b, !st && cudaStreamQuery(queue) == cudaSuccess, "what was enqueued", 0, 1);
	expect(b, fake_nccl("fake_nccl_met") == 2 || fake_nccl("fake_nccl_met") == -1,
	       "one meeting of ranks for each of two instances", 0, 1);
	nccl->destroy(b->c);
	gradcomp_links_close(w, links);
	b->c = first;
}

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	const gradcomp_value *values = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	const gradcomp_links *links;
	gradcomp_links apart = {0};
	bench b = {.rank = rank, .P = P};
	out->failed = 1;
	plugin_host(&host, &quiet);
	ops = host.operators_on(GRADCOMP_CUDA, &b.err);
	if (!ops || cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking) ||
	    gradcomp_links_open(w, &links, &b.err) ||
	    nccl->create(&host, values, divided(links, &apart), &b.c, &b.err) || nccl->set_queue(b.c, queue, &b.err)) {
		printf("# rank %d: %s\n", rank, b.err.text);
		return;
	}
	for (int s = 0; s < SIZES; s++)
		for (int dev = 1; dev >= 0; dev--)
			all_primitives(&b, s, dev);
	enqueued(&b, w, values);
	nccl->destroy(b.c);
	gradcomp_links_close(w, links);
	out->failed = b.failed;
	out->mark = b.mark;
}

/* The last rank dies before a call whose work the others have put on their streams, and the one after that needs more
 * scratch memory: what stands in the way of that is looked after. */
static void outgrows(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	enum { FEW = 8, MANY = 5000 };
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	gradcomp_group *w = gradcomp_job_world(job);
	const gradcomp_links *links;
	gradcomp_links apart = {0};
	gradcomp_error err = {0};
	void *c;
	int busy = 1;
	plugin_host(&host, &quiet);
	ops = host.operators_on(GRADCOMP_CUDA, &err);
	out->failed = !ops || cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking) ||
	              gradcomp_links_open(w, &links, &err) ||
	              nccl->create(&host, arg, divided(links, &apart), &c, &err) || nccl->set_queue(c, queue, &err) ||
	              nccl->enqueue(c, 1, &err);
	if (out->failed)
		return;
	code_place place = {.op = ops,
	                    .queue = queue,
	                    .q = {.struct_size = sizeof place.q, .bits = 8, .levels = 127, .block = 256}};
	const gradcomp_codec codec = {.struct_size = sizeof codec,
	                              .ctx = &place,
	                              .bound = code_bound,
	                              .code = code,
	                              .decode = decode,
	                              .decode_add = decode_add};
	buffer x = buffer_new(4 * MANY * (uint64_t)P, 1);
	for (int call = 0; !out->status && call < 3; call++) {
		uint64_t counts[MAX_RANKS];
		for (int r = 0; r < P; r++)
			counts[r] = call == 2 ? MANY : FEW;
		if (call == 1 && rank == P - 1) {
			usleep(200000);
			raise(SIGKILL);
		}
		out->status = nccl->coded_allgather(c, (float *)(void *)x.at, counts, &codec, 1, NULL, &err);
		while (!call && !out->status && busy)
			out->status = nccl->watch(c, &busy, &err);
	}
	while (!out->status)
		out->status = nccl->watch(c, &busy, &err);
	snprintf(out->text, sizeof out->text, "%s", err.text);
	nccl->destroy(c);
	gradcomp_links_close(w, links);
	buffer_free(&x);
}

static void try_outgrows(const char *name, const char *const *settings, const gradcomp_value *values)
{
	enum { P = 4 };
	setenv("FAKE_NCCL_SILENT", "1", 1);
	const outcome *o = run_processes(P, 20, settings, outgrows, (void *)(uintptr_t)values);
	int right = o[P - 1].failed == -SIGKILL;
	unsetenv("FAKE_NCCL_SILENT");
	for (int r = 0; r < P - 1; r++)
		right &= !o[r].failed && o[r].status == GRADCOMP_ERR_PEER && strstr(o[r].text, "rank 3");
	ok(right, "%s: scratch memory that grows behind a rank that is lost does not wait for it (%s)", name,
	   o[0].text);
	for (int r = 0; !right && r < P; r++)
		printf("# rank %d: failed %d, status %d \"%s\"\n", r, o[r].failed, o[r].status, o[r].text);
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	struct timespec now;
	config *c;
	gradcomp_error err = {0};
	static const struct {
		const char *spec;
		int from, scattered;
	} all[] = {{"nccl:timeout=30", 1, 0},
	           {"hier:timeout=30", 3, 0},
	           {"hier:timeout=30,ranks_per_node=2", 2, 0},
	           {"hier:timeout=30,ranks_per_node=4", 5, 0},
	           {"hier:timeout=30", 4, 1}};
	clock_gettime(CLOCK_REALTIME, &now);
	seed = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : (uint64_t)now.tv_nsec;
	printf("# seed %llu\n", (unsigned long long)seed);
	if (config_load(NULL, &c, &err)) {
		ok(0, "settings: %s", err.text);
		return done_testing();
	}
	for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
		const plugin *p;
		spec of;
		if (spec_resolve(c, GRADCOMP_KIND_COLLECTIVE, all[k].spec, &p, &of, &err)) {
			ok(0, "the collective %s is found: %s", all[k].spec, err.text);
			continue;
		}
		nccl = p->collective;
		scattered = all[k].scattered;
		for (int P = all[k].from; P <= 5; P++) {
			/* Odd numbers of ranks on one day, even ones on the next. */
			if (all[k].from < 5 && !tap_in_part((size_t)P + k, 2))
				continue;
			const outcome *o = run_processes(P, 60, settings, body, (void *)(uintptr_t)of.values);
			int failed = 0, differ = 0;
			for (int r = 0; r < P; r++) {
				failed |= o[r].failed;
				differ |= o[r].mark != o[0].mark;
			}
			ok(!failed && !differ,
			   "%s%s: every primitive is right, and the same to the bit on all of %d ranks", all[k].spec,
			   scattered ? ", every other rank on another node" : "", P);
			if (differ)
				printf("# ranks differ\n");
		}
		if (scattered)
			try_outgrows(all[k].spec, settings, of.values);
		spec_clear(&of);
	}
	config_free(c);
	return done_testing();
}
