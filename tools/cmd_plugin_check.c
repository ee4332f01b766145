/* gradcomp plugin-check: a plugin against the rules of its headers. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/kit.h"
#include "tools/commands.h"
#include "base/json.h"

static const char usage[] = "usage: gradcomp plugin-check [--param KEY=VALUE]... [--ranks N[..M]] [--seed N]\n"
			    "                             [--thorough] [--limit SECONDS] [--json] FILE.so\n"
			    "\n"
			    "Runs a compressor in simulated ranks of one process against every rule of\n"
			    "gradcomp/compressor.h, with fresh random input. One line a rule: ok, FAIL or skip,\n"
			    "its number and name, and what was seen. 0 when every rule was reached and none is\n"
			    "broken, else 1. A collective's primitives run between threads, over links that\n"
			    "notice what is not waited for, and its predict() is asked.\n"
			    "\n"
			    "  --param KEY=VALUE  a parameter of the plugin; may be given several times\n"
			    "  --ranks N..M       sizes of jobs, 1..9 when not given, at most 16\n"
			    "  --seed N           repeats the input of a run, as its first line says\n"
			    "  --thorough         more models, more tampering; minutes instead of seconds\n"
			    "  --limit SECONDS    a call that takes longer hangs (10)\n"
			    "  --json             the result as JSON\n";

enum { RANKS_ASKED_MAX = 16 };

static void print_text(const kit_options *o, const kit_result *r, double seconds)
{
	static const char *const words[] = {[RESULT_OK] = "ok  ",
	                                    [RESULT_FAIL] = "FAIL",
	                                    [RESULT_SKIP] = "skip",
	                                    [RESULT_MISSED] = "miss",
	                                    [RESULT_WARN] = "warn"};
	printf("%s", o->path);
	if (r->name[0])
		printf(": %s %s, %s, ABI %u", r->name, r->version, r->licence, r->abi);
	printf("\n%s%sranks %d..%d, seed %llu\n\n", r->spec, r->spec[0] ? "; " : "", o->ranks_min, o->ranks_max,
	       (unsigned long long)o->seed);
	for (int i = RULE_NONE + 1; i < RULES; i++) {
		if (!r->text[i][0])
			continue;
		size_t seen = strcspn(r->text[i], "\n");
		printf("%s %2d %-13s %.*s", words[r->result[i]], i, rule_name((rule)i), (int)seen, r->text[i]);
		if (r->broken[i] > 1)
			printf(" (and %d times more)", r->broken[i] - 1);
		if (r->result[i] == RESULT_FAIL)
			printf("\n                      rule: %s", rule_text((rule)i));
		if (r->text[i][seen])
			printf("\n                      look at: %s", r->text[i] + seen + 1);
		if (r->result[i] == RESULT_WARN)
			printf("\n                      rule: %s\n                      ABI %u, for which it was built, did not ask for this; a plugin "
			       "built today fails",
			       rule_text((rule)i), r->abi);
		putchar('\n');
	}
	printf("\n%d rules kept, %d broken, ", r->rules_kept, r->rules_broken);
	if (r->rules_warned)
		printf("%d of a later ABI, ", r->rules_warned);
	printf("%d not reached, %d do not apply; %.1f s\n", r->rules_missed, r->rules_skipped, seconds);
}

static void print_json(const kit_options *o, const kit_result *r, double seconds)
{
	static const char *const words[] = {[RESULT_OK] = "ok",
	                                    [RESULT_FAIL] = "fail",
	                                    [RESULT_SKIP] = "skip",
	                                    [RESULT_MISSED] = "missed",
	                                    [RESULT_WARN] = "warn"};
	char seen[KIT_TEXT];
	jsonw j;
	json_put_start(&j, stdout);
	json_put_object(&j, NULL);
	json_put_string(&j, "file", o->path);
	json_put_string(&j, "name", r->name[0] ? r->name : NULL);
	json_put_string(&j, "version", r->name[0] ? r->version : NULL);
	json_put_string(&j, "spec", r->spec[0] ? r->spec : NULL);
	json_put_int(&j, "ranks_min", o->ranks_min);
	json_put_int(&j, "ranks_max", o->ranks_max);
	json_put_uint(&j, "seed", o->seed);
	json_put_float(&j, "seconds", seconds);
	json_put_bool(&j, "passed", !r->rules_broken && !r->rules_missed);
	json_put_array(&j, "rules");
	for (int i = RULE_NONE + 1; i < RULES; i++) {
		if (!r->text[i][0])
			continue;
		json_put_object(&j, NULL);
		json_put_int(&j, "number", i);
		json_put_string(&j, "name", rule_name((rule)i));
		json_put_string(&j, "result", words[r->result[i]]);
		json_put_string(&j, "rule", rule_text((rule)i));
		snprintf(seen, sizeof seen, "%.*s", (int)strcspn(r->text[i], "\n"), r->text[i]);
		json_put_string(&j, "seen", seen);
		json_put_string(&j, "cause", strchr(r->text[i], '\n') ? strchr(r->text[i], '\n') + 1 : NULL);
		json_put_int(&j, "failures", r->broken[i]);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
}

/* "3" or "1..9". */
static bool take_ranks(const char *text, kit_options *o)
{
	char *end;
	o->ranks_min = o->ranks_max = (int)strtol(text, &end, 10);
	if (end != text && !strncmp(end, "..", 2)) {
		text = end + 2;
		o->ranks_max = (int)strtol(text, &end, 10);
	}
	return end != text && !*end && o->ranks_min >= 1 && o->ranks_max >= o->ranks_min &&
	       o->ranks_max <= RANKS_ASKED_MAX;
}

/* --param can stand several times, which command_take_options() does not know: those are
 * taken out of argv here, into "key=value,key=value". Returns the new argc, or -1. */
static int take_parameters(int argc, char **argv, char *out, size_t capacity)
{
	size_t at = 0;
	int kept = 1;
	*out = '\0';
	for (int i = 1; i < argc; i++) {
		const char *value = NULL;

		if (!strncmp(argv[i], "--param=", 8))
			value = argv[i] + 8;
		else if (!strcmp(argv[i], "--param"))
			value = i + 1 < argc ? argv[++i] : "";
		if (!value) {
			argv[kept++] = argv[i];
			continue;
		}
		if (!strchr(value, '='))
			return -1;
		at += (size_t)snprintf(out + at, capacity - at, "%s%s", at ? "," : "", value);
		if (at >= capacity)
			return -1;
	}
	argv[kept] = NULL;
	return kept;
}

static bool take_number(const char *text, uint64_t *out)
{
	char *end;
	*out = strtoull(text, &end, 10);
	return end != text && !*end && *text != '-';
}

int cmd_plugin_check(int argc, char **argv)
{
	char parameters[800];
	const char *words[1] = {NULL}, *ranks = "1..9", *seed = NULL, *limit = "10";
	int as_json = 0, status;
	kit_options o = {.parameters = parameters, .large = 1, .far = 1};
	const command_option options[] = {{"--ranks", &ranks, NULL},         {"--seed", &seed, NULL},
	                                  {"--limit", &limit, NULL},         {"--json", NULL, &as_json},
	                                  {"--thorough", NULL, &o.thorough}, {NULL, NULL, NULL}};
	static kit_result result;
	struct timespec from, to;
	uint64_t seconds;
	argc = take_parameters(argc, argv, parameters, sizeof parameters);
	if (argc < 0)
		return command_usage_error(usage, "%s: --param needs KEY=VALUE", argv[0]);
	status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	if (!words[0])
		return command_usage_error(usage, "%s: which file?", argv[0]);
	if (!take_ranks(ranks, &o))
		return command_usage_error(usage, "%s: --ranks %s is not N or N..M within 1..%d", argv[0], ranks,
		                           RANKS_ASKED_MAX);
	o.seed = random_fresh_seed();
	if (seed && !take_number(seed, &o.seed))
		return command_usage_error(usage, "%s: --seed %s is no number", argv[0], seed);
	if (!take_number(limit, &seconds) || !seconds || seconds > 86400)
		return command_usage_error(usage, "%s: --limit %s is not 1 to 86400 seconds", argv[0], limit);
	o.seconds = (double)seconds;
	o.path = words[0];
	clock_gettime(CLOCK_MONOTONIC, &from);
	status = kit_run(&o, &result);
	clock_gettime(CLOCK_MONOTONIC, &to);
	(as_json ? print_json
	         : print_text)(&o, &result,
	                       (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
	return status;
}
