#include "conformance/call_state.h"

#include <fenv.h>

#include "conformance/process.h"

static call_state own_state;
call_state *call_now = &own_state;

bool call_in_step(void)
{
	return call_now->which >= CALL_PLAN && call_now->which <= CALL_CODE_DECODE_ADD;
}

const char *call_primitive(int bit)
{
	static const char *const names[PRIMITIVES] = {
		"allreduce", "reduce_scatter",  "allgather",       "alltoall", "broadcast", "barrier",
		"merge",     "coded_allreduce", "coded_allgather", "exchange", "shard",     "coded_reduce_scatter"};
	return names[bit];
}

const char *call_name(call_which which)
{
	static const char *const names[CALL_PRIMITIVE] = {[CALL_NONE] = "no function",
	                                                  [CALL_CREATE] = "create",
	                                                  [CALL_DESTROY] = "destroy",
	                                                  [CALL_PLAN] = "plan",
	                                                  [CALL_ENCODE] = "encode",
	                                                  [CALL_DECODE] = "decode",
	                                                  [CALL_MERGE] = "merge",
	                                                  [CALL_CODE] = "code",
	                                                  [CALL_CODE_DECODE] = "code_decode",
	                                                  [CALL_CODE_DECODE_ADD] = "code_decode_add",
	                                                  [CALL_SAVE] = "save",
	                                                  [CALL_LOAD] = "load",
	                                                  [CALL_COST] = "cost",
	                                                  [CALL_CODES] = "code() beside code_decode",
	                                                  [CALL_PREDICT] = "predict",
	                                                  [CALL_CHOICE] = "choice"};
	return which < CALL_PRIMITIVE ? names[which] : call_primitive((int)(which - CALL_PRIMITIVE));
}

void call_begin(call_which which, int rank, int nranks, uint32_t round)
{
	call_now->rank = rank;
	call_now->nranks = nranks;
	call_now->round = round;
	call_now->count++;
	call_now->which = which;
}

void call_left(call_which which)
{
	int now = process_floats();
	if (!now)
		return;
	if (!call_now->floats) {
		call_now->floats = now;
		call_now->floats_by = which;
	}
	fesetenv(FE_DFL_ENV);
}

void call_end(void)
{
	call_left(call_now->which);
	call_now->which = CALL_NONE;
}
