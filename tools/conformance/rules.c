#include "tools/conformance/rules.h"

static const struct {
	const char *name, *text, *cause;
	uint32_t since; /* 0: the first ABI */
} rules[RULES] = {
	[RULE_NONE] = {"none", "nothing",
		"nothing"},
	[RULE_CONSERVATION] = {"conservation", "what goes in comes out or stays in the error memory",
		"error is computed from something else than what was sent, after rounding; an index is too narrow for the bucket; or decode() refuses an average that overflows, or keeps of it"},
	[RULE_AGREEMENT] = {"agreement", "all ranks end with the same bits",
		"payloads are not added in rank order, or the result hangs on the rank, the time or uninitialised memory"},
	[RULE_BYTES] = {"bytes", "a payload has the bytes that plan() and encode() report",
		"out->bytes, the bound in plan() and cost() are three formulas that should be one; or not all of it is written"},
	[RULE_RESUME] = {"resume", "save() and load() continue to the bit",
		"something that a later step depends on is not in save(): a counter, a position, a previous factor"},
	[RULE_TENSORS] = {"tensors", "state belongs to tensors: buckets can be rebuilt",
		"state is kept by bucket->index, or as if a bucket always had the same tensors"},
	[RULE_DECODE_ONLY] = {"decode-only", "encode() changes nothing that lasts",
		"encode() counts, or keeps something outside of scratch"},
	[RULE_DESCRIPTOR] = {"descriptor", "the exported constant is correct",
		"a field was forgotten, or belongs to another pattern; or a length of plan() went below zero"},
	[RULE_PARAMETERS] = {"parameters", "every value of the table works or is refused with a message",
		"the range is wider than what the method can do, or check() has no words"},
	[RULE_BOUNDS] = {"bounds", "nothing is written outside of what was given",
		"a bound or scratch_bytes is too small, or a loop runs over the layout instead of the bucket; buckets of 0 and 1 numbers occur"},
	[RULE_PEERS] = {"peers", "what peers sent is checked before it is used",
		"a length, count or index of a peer is used before it is compared"},
	[RULE_SAVED_STATE] = {"saved-state", "a state that is not right is refused with a message and changes nothing",
		"load() copies before it has checked the length and the mark"},
	[RULE_GLOBALS] = {"globals", "instances share nothing",
		"a static variable"},
	[RULE_THREADS] = {"threads", "any thread, buckets interleaved, merge() writes nothing",
		"a _Thread_local variable, more stack than a worker has, or a workspace that two functions share"},
	[RULE_STEADY] = {"steady", "a step allocates, locks, sleeps and prints nothing",
		"memory that belongs into create() or scratch; a message that belongs to host->log"},
	[RULE_MEMORY] = {"memory", "memory that is allocated is freed, and allocating may fail",
		"an error path of create() returns without destroy(), or destroy() forgets a member"},
	[RULE_TIME] = {"time", "no function blocks",
		"a loop whose counter is too narrow or whose end another rank decides; a lock"},
	[RULE_UNBIASED] = {"unbiased", "the average is right on average",
		"clipping, or rounding to nearest"},
	[RULE_NONFINITE] = {"nonfinite", "NaN and Inf come out where they went in",
		"a comparison that is false for NaN; remove the trait, and the host keeps them away"},
	[RULE_CODE] = {"code", "a code keeps to its bound and to what it promises",
		"code_bound() forgets a header, or the last incomplete block; code() holds an Inf within its range"},
	[RULE_DEVICE] = {"device", "device memory is touched by operators alone",
		"a plain loop or memcpy() over work->flat, error or a payload"},
	[RULE_PREDICT] = {"predict", "what it predicts is plausible",
		"a formula for another number of ranks, or for one node only"},
	[RULE_PROCESS] = {"process", "nothing of the process changes: rounding, descriptors, threads, directory, locale, symbols",
		"-ffast-math when linking, a missing close() or pthread_join(), a library that is initialised", 2},
	[RULE_NOISE] = {"noise", "ranks draw different random numbers",
		"the seed lacks the rank: layout->seed is equal on all ranks", 2},
	[RULE_PRIMITIVES] = {"primitives", "every primitive does what the header says",
		"a block of no elements, a number of ranks that is no power of two, scale applied twice, or one element type taken for another", 2},
	[RULE_LINKS] = {"links", "every transfer is waited for, and a failure of links is returned",
		"a request that is not waited for, a buffer used before wait(), a status that is dropped", 2},
};

const char *rule_name(rule r)
{
	return rules[r].name;
}

const char *rule_text(rule r)
{
	return rules[r].text;
}

uint32_t rule_since(rule r)
{
	return rules[r].since;
}

const char *rule_cause(rule r)
{
	return rules[r].cause;
}
