#include "tools/conformance/rules.h"

static const struct {
	const char *name, *text;
	uint32_t since; /* 0: the first ABI */
} rules[RULES] = {
	[RULE_NONE] = {"none", "nothing"},
	[RULE_CONSERVATION] = {"conservation", "what goes in comes out or stays in the error memory"},
	[RULE_AGREEMENT] = {"agreement", "all ranks end with the same bits"},
	[RULE_BYTES] = {"bytes", "a payload has the bytes that plan() and encode() report"},
	[RULE_RESUME] = {"resume", "save() and load() continue to the bit"},
	[RULE_TENSORS] = {"tensors", "state belongs to tensors: buckets can be rebuilt"},
	[RULE_DECODE_ONLY] = {"decode-only", "encode() changes nothing that lasts"},
	[RULE_DESCRIPTOR] = {"descriptor", "the exported constant is correct"},
	[RULE_PARAMETERS] = {"parameters", "every value of the table works or is refused with a message"},
	[RULE_BOUNDS] = {"bounds", "nothing is written outside of what was given"},
	[RULE_PEERS] = {"peers", "what peers sent is checked before it is used"},
	[RULE_SAVED_STATE] = {"saved-state",
                              "a state that is not right is refused with a message and changes nothing"},
	[RULE_GLOBALS] = {"globals", "instances share nothing"},
	[RULE_THREADS] = {"threads", "any thread, buckets interleaved, merge() writes nothing"},
	[RULE_STEADY] = {"steady", "a step allocates, locks, sleeps and prints nothing"},
	[RULE_MEMORY] = {"memory", "memory that is allocated is freed, and allocating may fail"},
	[RULE_TIME] = {"time", "no function blocks"},
	[RULE_UNBIASED] = {"unbiased", "the average is right on average"},
	[RULE_NONFINITE] = {"nonfinite", "NaN and Inf come out where they went in"},
	[RULE_CODE] = {"code", "a code keeps to its bound and to what it promises"},
	[RULE_DEVICE] = {"device", "device memory is touched by operators alone"},
	[RULE_PREDICT] = {"predict", "what it predicts is plausible"},
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
