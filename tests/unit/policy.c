/* Policies: what is taken, where a text is wrong and in which words, which entry is for a call, what groups' names tell,
 * and mutated texts. */
#include "config/policy.h"

#include "gradcomp/coder.h"

#include "tests/fuzz/mutate.h"
#include "tests/support/tap.h"
#include "tests/support/thread_ranks.h"

#include <stdlib.h>

static gradcomp_error e;

/* The text that comes of one, or the error's. */
static const char *read_as(const char *text)
{
	static char out[1200];
	gradcomp_policy *p;
	if (policy_parse(text, &p, &e))
		return e.text;
	snprintf(out, sizeof out, "%s", gradcomp_policy_text(p));
	policy_free(p);
	return out;
}

static void taken(void)
{
	gradcomp_policy *p;
	is_str(read_as("dp/powersgd:rank=4+dp.reduce_scatter/block:bits=8+any/none"),
	       "dp/powersgd:rank=4+dp.reduce_scatter/block:bits=8+any/none", "three entries");
	is_str(read_as("  dp.all_gather /  block:bits=8 + tp.1M/fp8 "), "dp.all_gather/block:bits=8+tp.1M/fp8",
	       "blanks around are left out");
	is_str(read_as("block:bits=8"), "dp/block:bits=8", "a SPEC alone is for dp");
	is_int(policy_parse("@dp_shard.all_gather.f32.bf16.0/block:bits=8@ring", &p, &e), 0, "all kinds of words");
	is_str(p->entries[0].name, "dp_shard", "the group's name");
	is_str(p->entries[0].spec, "block:bits=8", "the SPEC");
	is_str(p->entries[0].collective, "ring", "the collective");
	is_int(p->entries[0].operations, 1 << GRADCOMP_POLICY_ALL_GATHER, "operations");
	is_int(p->entries[0].types, 1 << GRADCOMP_F32 | 1 << GRADCOMP_BF16, "types");
	is_int(p->entries[0].least, 0, "least bytes");
	policy_free(p);
	is_int(policy_parse("reduce_scatter/block", &p, &e), 0, "an operation alone");
	is_int(p->entries[0].roles, 1 << GRADCOMP_ROLE_DP, "is for dp");
	is_int(p->entries[0].least, 65536, "from 64 KiB on");
	policy_free(p);
	for (int i = 0; i < 2; i++) {
		static const char *const texts[] = {"dp/block", "dp.all_gather/a:file=/x/y"};
		ok(policy_is(texts[i]), "a policy: %s", texts[i]);
	}
	ok(!policy_is("block:bits=8") && !policy_is("x:file=/a/b") && !policy_is("../x") && !policy_is("/x") &&
	           !policy_is(""),
	   "no policies: SPECs, and paths");
}

static void refused(void)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"dp.al_gather/block",
	         "entry 1 at character 4: 'al_gather' is no word of a selector (did you mean 'all_gather'?)"},
		{"dp/block+tp.f32.i32/block", "entry 2 at character 17: 'i32' is never compressed: integers"},
		{"dp.f64/block", "'f64' is never compressed: no code"},
		{"dp.dp/block", "'dp' is there twice"},
		{"any.tp/block", "'tp' is there twice"},
		{"dp.64K.1M/block", "'1M' is a second number of least bytes"},
		{"dp.64Q/block", "'64Q' is not a size such as"},
		{"@a.dp/block", "role 'dp' beside '@a'"},
		{"dp.@a/block", "'@a' beside a role"},
		{"@a.@b/block", "'@b' beside another name"},
		{"@/block", "'@' names no group"},
		{"@a*/block", "'@a*' names no group"},
		{"dp./block", "a word is missing"},
		{"dp/block++tp/block", "entry 2 at character 10: it is empty"},
		{"dp/block+", "entry 2 at character 10: it is empty"},
		{"dp/block:bits=8;tp/none+all", "entry 2 at character 25: 'all' has no '/'"},
		{"dp/", "entry 1 at character 4: no SPEC stands"},
		{"dp/Block", "'Block' cannot be a name (did you mean 'block'?)"},
		{"dp/block@", "does not begin with a name"},
		{"dp all_gather/block", "has a blank within"},
		{"powersgd/rank=4", "'powersgd' is no word of a selector"},
		{"dp/bl\tock", "a control character at character 6"},
		{"", "no SPEC stands"},
	};
	char many[400] = "", longest[POLICY_MAX + 2];
	gradcomp_policy *p;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		is_int(policy_parse(bad[i].text, &p, &e), GRADCOMP_ERR_INVALID, "refused: %zu", i);
		like(e.text, bad[i].says, "its words");
	}
	for (int i = 0; i <= POLICY_ENTRIES; i++)
		sprintf(many + strlen(many), "%sdp.%d/fp8", i ? "+" : "", i);
	like(read_as(many), "entry 33 at character", "the entry that is one too many");
	like(read_as(many), "at most 32 entries", "and how many there may be");
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	like(read_as(longest), "901 characters: at most 900", "a text that is too long");
}

static int found(const char *text, uint32_t operation, uint32_t dtype, uint32_t role, const char *name, uint64_t bytes)
{
	gradcomp_policy_call call = {sizeof call, operation, dtype, role, name, bytes};
	gradcomp_policy *p;
	if (policy_parse(text, &p, &e))
		return -2;
	int at = policy_find(p, &call);
	policy_free(p);
	return at;
}

static void matched(void)
{
	enum { AR = GRADCOMP_POLICY_ALL_REDUCE, AG, RS };
	const uint64_t big = 1 << 20;
	const char *of = "dp.all_reduce/powersgd+dp.bf16.1M/fp8+dp/block+@tp_x/none+any.ep.2M/zfp";
	is_int(found(of, AR, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL, big), -2,
	       "a role that `any` has already is refused");
	of = "dp.all_reduce/powersgd+dp.bf16.1M/fp8+dp/block+@tp_x/none+any.2M/zfp";
	is_int(found(of, AR, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL, big), 0, "the first that is for it");
	is_int(found(of, AG, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL, big), 2, "not one for another operation or type");
	is_int(found(of, AG, GRADCOMP_BF16, GRADCOMP_ROLE_DP, NULL, big), 1, "by type and bytes");
	is_int(found(of, AG, GRADCOMP_BF16, GRADCOMP_ROLE_DP, NULL, big - 1), 2, "a byte less");
	is_int(found(of, AG, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL, 65535), -1, "nothing below 64 KiB");
	is_int(found(of, AG, GRADCOMP_F32, GRADCOMP_ROLE_TP, "tp_x", big), 3, "by name");
	is_int(found(of, AG, GRADCOMP_F32, GRADCOMP_ROLE_TP, "mesh_tp_x", 4 * big), 3, "by the name of a mesh");
	is_int(found(of, AG, GRADCOMP_F32, GRADCOMP_ROLE_TP, "tp", big), -1, "tp is not asked for");
	is_int(found(of, RS, GRADCOMP_F32, GRADCOMP_ROLE_NONE, NULL, 2 * big), 4, "any group, of no role too");
	is_int(found(of, RS, GRADCOMP_I32, GRADCOMP_ROLE_DP, NULL, 2 * big), -1, "no integers");
	is_int(found(of, RS, GRADCOMP_F64, GRADCOMP_ROLE_DP, NULL, 2 * big), -1, "no 64-bit floats");
	is_int(found(of, 3, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL, big), -1, "no such operation");
	is_int(found(of, AR, GRADCOMP_F32, 5, NULL, big), -1, "no such role");
}

static void hidden(void)
{
	static const struct {
		const char *text, *says;
	} of[] = {
		{"dp/block+dp.all_gather/fp8",
	         "entry 2: 'dp.all_gather/fp8' is for nothing, since entry 1, 'dp/block'"},
		{"any/none+@x/block", "entry 2: '@x/block'"},
		{"dp/none+tp/block+dp.1M/block", "entry 3"},
		{"dp.1M/block+dp/fp8", NULL},
		{"dp.f32/block+dp/fp8", NULL},
		{"dp/block+dp.4K/fp8", NULL},
		{"dp/block+@x/fp8+any/none", NULL},
	};
	gradcomp_policy *p;
	for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
		if (policy_parse(of[i].text, &p, &e))
			exit(2);
		is_int(policy_check_hidden(p, &e), of[i].says ? GRADCOMP_ERR_INVALID : 0, "%s", of[i].text);
		if (of[i].says)
			like(e.text, of[i].says, "names both");
		policy_free(p);
	}
}

static void roles(void)
{
	static const struct {
		const char *name;
		int nranks;
		gradcomp_role role;
	} of[] = {
		{NULL, 8, GRADCOMP_ROLE_DP},
		{NULL, 4, GRADCOMP_ROLE_NONE},
		{"default_pg", 8, GRADCOMP_ROLE_DP},
		{"undefined", 2, GRADCOMP_ROLE_NONE},
		{"mesh_dim_0", 2, GRADCOMP_ROLE_NONE},
		{"mesh_dp", 2, GRADCOMP_ROLE_DP},
		{"dp_shard_cp", 2, GRADCOMP_ROLE_DP},
		{"dp0", 2, GRADCOMP_ROLE_DP},
		{"FSDP", 2, GRADCOMP_ROLE_DP},
		{"data_parallel", 2, GRADCOMP_ROLE_DP},
		{"mesh_tp", 8, GRADCOMP_ROLE_TP},
		{"model_parallel_group", 4, GRADCOMP_ROLE_TP},
		{"pipeline", 4, GRADCOMP_ROLE_PP},
		{"expert", 4, GRADCOMP_ROLE_EP},
		{"expert_data_parallel", 4, GRADCOMP_ROLE_NONE},
		{"dpx", 4, GRADCOMP_ROLE_NONE},
	};
	for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
		is_int(gradcomp_policy_role(of[i].name, of[i].nranks, 8), of[i].role, "'%s', %d of 8 ranks",
		       of[i].name ? of[i].name : "none", of[i].nranks);
}

/* Puts letters in, out, or in the place of others, or doubles a piece. */
static void edit(char *text, uint32_t edits)
{
	static const char letters[] = "./+@:=,; KM0123456789dptx_";
	for (; edits; edits--) {
		size_t n = strlen(text), at = draw((uint32_t)n + 1);
		const char letter = (char)(draw(8) ? letters[draw(sizeof letters - 1)] : (char)(1 + draw(255)));
		switch (draw(4)) {
		case 0:
			memmove(text + at + 1, text + at, n + 1 - at);
			text[at] = letter;
			break;
		case 1:
			memmove(text + at, text + at + (at < n), n + 1 - at - (at < n));
			break;
		case 2:
			if (at < n)
				text[at] = letter;
			break;
		default:
			if (n - at < 60 && n < 300)
				memcpy(text + n, strdupa(text + at), n - at + 1);
		}
	}
}

/* A mutated text is read, and what comes of it reads back as itself; or it is refused in words that can be printed. */
static void mutated(void)
{
	static const char *const seeds[] = {
		"dp.all_reduce/powersgd:rank=4+dp.all_gather.reduce_scatter/block:bits=8+any/none",
		"@dp_shard.all_gather.f32.bf16.1M / block:bits=8@ring + tp.64K/fp8", "block:bits=8",
		"ep.pp.0/none+dp/zfp:rate=8"};
	for (long i = mutate_begin(20000); i > 0; i--) {
		char text[400];
		gradcomp_policy *p, *again;
		snprintf(text, sizeof text, "%s", seeds[i % 4]);
		edit(text, 1 + draw(4));
		gradcomp_status st = policy_parse(text, &p, &e);
		if (st) {
			bool shown = st == GRADCOMP_ERR_INVALID && *e.text;
			for (const char *c = e.text; *c; c++)
				shown = shown && (unsigned char)*c >= 0x20 && *c != 0x7f;
			case_of("what is refused is so in words", shown, "'%s': %s", text, e.text);
			continue;
		}
		st = policy_parse(p->text, &again, &e);
		case_of("what is taken reads back as itself",
		        !st && !strcmp(p->text, again->text) && p->nentries == again->nentries, "'%s' -> '%s': %s",
		        text, p->text, st ? e.text : again->text);
		policy_free(p);
		policy_free(st ? NULL : again);
	}
	tap_cases("mutated texts");
}

/* The public functions, which know the plugins. */
static void held_against_plugins(void)
{
	gradcomp_policy *p;
	gradcomp_policy_entry entry = {.struct_size = sizeof entry};
	gradcomp_policy_call call = {sizeof call, GRADCOMP_POLICY_ALL_GATHER, GRADCOMP_F32, GRADCOMP_ROLE_DP, NULL,
	                             1 << 20};
	is_int(gradcomp_policy_create("dp/powersgd:rank=4+dp/block:bits=8+any/none", &p, &e), 0,
	       "powersgd, then block");
	is_int(gradcomp_policy_entries(p), 3, "three entries");
	is_int(gradcomp_policy_get(p, 0, &entry, &e), 0, "the first");
	is_int(entry.operations, 1 << GRADCOMP_POLICY_ALL_REDUCE, "is for all-reduces alone: powersgd gives no code");
	is_int(gradcomp_policy_match(p, &call), 1, "an all-gather falls to the second");
	call.operation = GRADCOMP_POLICY_ALL_REDUCE;
	is_int(gradcomp_policy_match(p, &call), 0, "an all-reduce to the first");
	call.role = GRADCOMP_ROLE_TP;
	is_int(gradcomp_policy_match(p, &call), -1, "what is for none goes as it is");
	call.struct_size = 8;
	is_int(gradcomp_policy_match(p, &call), -1, "a call that is too short");
	is_int(gradcomp_policy_get(p, 3, &entry, &e), GRADCOMP_ERR_INVALID, "there is no fourth");
	gradcomp_policy_free(p);
	gradcomp_policy_free(NULL);
	is_int(gradcomp_policy_create("dp.reduce_scatter/powersgd:rank=4", &p, &e), GRADCOMP_ERR_UNSUPPORTED,
	       "powersgd for shards");
	like(e.text, "policy, entry 1 'dp.reduce_scatter': 'powersgd' works on matrices", "says why");
	is_int(gradcomp_policy_create("dp/block:bits=8+dp.all_gather/fp8", &p, &e), GRADCOMP_ERR_INVALID,
	       "one that is hidden");
	is_int(gradcomp_policy_create("dp/block:bots=8", &p, &e), GRADCOMP_ERR_INVALID, "a parameter that is none");
	like(e.text, "entry 1 'dp': block: unknown parameter 'bots'", "names the entry");
	is_int(gradcomp_policy_create("dp/blok", &p, &e), GRADCOMP_ERR_NOTFOUND, "a compressor that is none");
	is_int(gradcomp_policy_create("dp/auto", &p, &e), GRADCOMP_ERR_UNSUPPORTED, "auto");
	ok(!p, "nothing is left of those");
	setenv("GRADCOMP", "tp/block:bits=8", 1);
	is_int(gradcomp_policy_create(NULL, &p, &e), 0, "the one that is configured");
	is_str(gradcomp_policy_text(p), "tp/block:bits=8", "is that");
	gradcomp_policy_free(p);
	is_int(gradcomp_spec_check(NULL, NULL, &e), 0, "a job may be configured so");
	is_int(gradcomp_coder_check(NULL, NULL, &e), GRADCOMP_ERR_UNSUPPORTED, "a coder of it cannot be made");
	like(e.text, "gradcomp.compressor (environment GRADCOMP): 'tp/block:bits=8' is a policy", "which says why");
	setenv("GRADCOMP", "tp/bloc", 1);
	ok(gradcomp_spec_check(NULL, NULL, &e) < 0, "nor a job of one that is wrong");
}

int main(void)
{
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	taken();
	refused();
	matched();
	hidden();
	roles();
	mutated();
	held_against_plugins();
	return done_testing();
}
