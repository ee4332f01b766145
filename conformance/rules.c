#include "conformance/rules.h"

static const struct {
	const char *name, *text;
	uint32_t since; /* 0: the first ABI */
} rules[RULES] = {
	[RULE_NONE] = {"none", "nothing", 0},
	[RULE_CONSERVATION] = {"conservation", "what goes in comes out or stays in the error memory", 0},
	[RULE_AGREEMENT] = {"agreement", "all ranks end with the same bits", 0},
	[RULE_BYTES] = {"bytes", "a payload has the bytes that plan() and encode() report", 0},
	[RULE_RESUME] = {"resume", "save() and load() continue to the bit", 0},
	[RULE_TENSORS] = {"tensors", "state belongs to tensors: buckets can be rebuilt", 0},
	[RULE_DECODE_ONLY] = {"decode-only", "encode() changes nothing that lasts", 0},
	[RULE_DESCRIPTOR] = {"descriptor", "the exported constant is correct", 0},
	[RULE_PARAMETERS] = {"parameters", "every value of the table works or is refused with a message", 0},
	[RULE_BOUNDS] = {"bounds", "nothing is written outside of what was given", 0},
	[RULE_PEERS] = {"peers", "what peers sent is checked before it is used", 0},
	[RULE_SAVED_STATE] = {"saved-state", "a state that is not right is refused with a message and changes nothing",
                              0},
	[RULE_GLOBALS] = {"globals", "instances share nothing", 0},
	[RULE_THREADS] = {"threads", "any thread, buckets interleaved, merge() writes nothing", 0},
	[RULE_STEADY] = {"steady", "a step allocates, locks, sleeps and prints nothing", 0},
	[RULE_MEMORY] = {"memory", "memory that is allocated is freed, and allocating may fail", 0},
	[RULE_TIME] = {"time", "no function blocks", 0},
	[RULE_UNBIASED] = {"unbiased", "the average is right on average", 0},
	[RULE_NONFINITE] = {"nonfinite", "NaN and Inf come out where they went in", 0},
	[RULE_CODE] = {"code", "a code keeps to its bound and to what it promises", 0},
	[RULE_DEVICE] = {"device", "device memory is touched by operators alone", 0},
	[RULE_PREDICT] = {"predict", "what it predicts is plausible", 0},
	[RULE_PROCESS] = {"process",
                          "nothing of the process changes: rounding, descriptors, threads, directory, locale, "
                          "symbols; its environment says nothing",
                          2},
	[RULE_NOISE] = {"noise", "ranks draw different random numbers, and others in every step", 2},
	[RULE_PRIMITIVES] = {"primitives", "every primitive does what the header says", 2},
	[RULE_LINKS] = {"links", "every transfer is waited for, and a failure of links is returned", 2},
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
