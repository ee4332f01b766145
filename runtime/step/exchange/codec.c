/* CODED rounds: the bucket's floats are summed in place under the compressor's code.
 * What coding loses on this rank goes straight into its error memory.
 *
 * A code may be lossy, so the news that a gradient is not finite goes ahead of it
 * as an exact all-reduce of one word, with the step. */
#include "step/exchange/exchange.h"
#include "plugin/code_view.h"
#include "step/memops.h"

gradcomp_status exchange_codec(engine *eng, bucket *b, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	code_source source = {eng->compressor, eng->instance};
	const gradcomp_codec codec = code_view(&source);
	uint64_t n = b->pub.numel;
	uint64_t counter = exchange_counter(eng, b);
	int passes = !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	gradcomp_status st = GRADCOMP_OK;
	b->own = (gradcomp_payload){b->work.flat, n * sizeof(float), n * sizeof(float)};
	if (!passes)
		st = exchange_largest_head(eng, b, err);
	if (st || b->bad)
		return st;
	const gradcomp_exchange x = {.struct_size = sizeof x,
	                             .buf = b->work.flat,
	                             .count = n,
	                             .scale = 1.0 / eng->layout.nranks,
	                             .codec = &codec,
	                             .counter = counter,
	                             .residual = b->work.error_flat,
	                             .server_error = b->server_error};
	st = c->serves & GRADCOMP_CAN_EXCHANGE
	             ? c->exchange(eng->coll_ctx.instance, &x, err)
	             : c->coded_allreduce(eng->coll_ctx.instance, x.buf, n, x.scale, &codec, counter, x.residual, err);
	if (!st && !passes)
		st = memops_nonfinite(eng, b->work.flat, n, &b->bad, err);
	b->bad = b->bad ? BAD_SUM : 0;
	return st;
}
