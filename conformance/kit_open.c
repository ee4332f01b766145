/* A plugin from its file, its parameters from the user: what kit_run() puts before the
 * groups. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/kit.h"
#include "conformance/process.h"
#include "conformance/symbols.h"

static gradcomp_status parse(const kit_options *o, const gradcomp_plugin_info *info, gradcomp_spec **spec,
                             gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = (const struct gradcomp_compressor_v1 *)(const void *)info;
	gradcomp_status st;
	gradcomp_host host;
	char text[1000];
	snprintf(text, sizeof text, "%s%s%s", info->name, *o->parameters ? ":" : "", o->parameters);
	st = gradcomp_spec_parse(info, text, spec, err);
	host_services(&host, gradcomp_host_operators());
	if (st || !c->check || !(st = c->check(&host, (*spec)->values, err)))
		return st;
	gradcomp_spec_free(*spec);
	return st;
}

/* The status of a process that has come to its end: not one that a plugin would think of. */
enum { LOADED = 76, REPORT_MAX = 400 };

/* The process that tries says this. */
typedef struct report {
	uint32_t abi;
	char text[REPORT_MAX];
} report;

/* Loads it, as the host would, and says what else has happened. */
static void load(const kit_options *o, report *said)
{
	char *text = said->text;
	const gradcomp_plugin_info *info;
	gradcomp_plugin_kind kind;
	gradcomp_spec *spec;
	process_state before;
	gradcomp_error err;
	const char *name;
	process_look(&before);
	if (gradcomp_plugin_open(o->path, &kind, &info, &err))
		return;
	said->abi = info->abi_version;
	name = symbols_exported(info->name); /* the host has a copy of info */
	if (name)
		snprintf(text, REPORT_MAX,
		         "%s is exported beside the descriptor, so a program's own %s would be called in its "
		         "place\n"
		         "make it static, or compile with -fvisibility=hidden",
		         name, name);
	else if (process_changed(&before, text, REPORT_MAX))
		snprintf(text + strlen(text), REPORT_MAX - strlen(text), ", when the plugin is loaded");
	else if (kind == GRADCOMP_KIND_COMPRESSOR && !parse(o, info, &spec, &err))
		gradcomp_spec_free(spec);
}

/* Loading and check() run code of the plugin: a process of its own tries first. What that
 * says, and what the plugin says, comes back in a file. */
static bool survives(const kit_options *o, kit_result *out)
{
	int printed = memfd_create("output", MFD_CLOEXEC), status = 0;
	report *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct stat st = {0};
	char *text;
	pid_t child;
	if (said == MAP_FAILED || printed < 0) {
		kit_note(out, RULE_PROCESS, RESULT_FAIL, "no memory");
		return false;
	}
	text = said->text;
	fflush(NULL);
	child = fork();
	if (child == 0) {
		dup2(printed, STDOUT_FILENO);
		dup2(printed, STDERR_FILENO);
		alarm((unsigned)o->seconds + 1);
		load(o, said);
		exit(LOADED); /* not _exit(): destructors run, too */
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		snprintf(text, REPORT_MAX, "no process could be started: %m");
	else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		kit_note(out, RULE_TIME, RESULT_FAIL, "loading it, or its check(), has taken more than %.0f s",
		         o->seconds);
	else if (WIFSIGNALED(status))
		kit_note(out, RULE_DESCRIPTOR, RESULT_FAIL, "loading it, or its check(), ends with signal %d",
		         WTERMSIG(status));
	else if (WEXITSTATUS(status) != LOADED)
		snprintf(text, REPORT_MAX,
		         "loading it, or its check() or a destructor, ends the process with status %d",
		         WEXITSTATUS(status));
	else if (!*text && !fstat(printed, &st) && st.st_size > 0)
		snprintf(text, REPORT_MAX,
		         "%lld bytes are written when the plugin is loaded, by a constructor or check()",
		         (long long)st.st_size);
	out->abi = said->abi;
	if (*text)
		kit_note(out, RULE_PROCESS, RESULT_FAIL, "%s", text);
	munmap(said, sizeof *said);
	close(printed);
	return !out->broken[RULE_PROCESS] && !out->broken[RULE_TIME] && !out->broken[RULE_DESCRIPTOR];
}

static bool has_row(const gradcomp_plugin_info *info, const char *name)
{
	for (uint32_t i = 0; i < info->nparams; i++)
		if (!strcmp(info->params[i].name, name))
			return true;
	return false;
}

/* Returns what a plugin that was built before `neutral` was there can only say by the names of its parameters. */
static const char *old_neutral(const gradcomp_plugin_info *info, char *room, size_t capacity)
{
	static const char *const off[][2] = {
		{"momentum", "0"}, {"clip", "0"}, {"decay", "1"}, {"sign", "no"}, {"orthogonal", "no"}};
	size_t n = 0;
	for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
		if (has_row(info, off[i][0]) && n < capacity)
			n += (size_t)snprintf(room + n, capacity - n, "%s%s=%s", n ? "," : "", off[i][0], off[i][1]);
	return n ? room : NULL;
}

/* Returns true when a list of parameters has the one that p begins with. */
static bool in_list(const char *list, const char *p)
{
	size_t n = strcspn(p, "=");
	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (!strncmp(list, p, n) && list[n] == '=')
			return true;
	return false;
}

gradcomp_status kit_neutral(fixture *t, const char *parameters, gradcomp_spec **out, gradcomp_error *err)
{
	const gradcomp_plugin_info *info = &t->plugin->info;
	const char *neutral =
		t->plugin->neutral ? t->plugin->neutral : old_neutral(info, t->neutral, sizeof t->neutral);
	char text[1200];
	size_t n;
	gradcomp_status st;
	*out = NULL;
	t->plain = NULL;
	if (!neutral)
		return GRADCOMP_OK;
	if (neutral != t->neutral)
		snprintf(t->neutral, sizeof t->neutral, "%s", neutral);
	n = (size_t)snprintf(text, sizeof text, "%s:%s", info->name, neutral);
	for (const char *p = parameters; *p; p += strcspn(p, ","), p += *p == ',')
		if (!in_list(neutral, p) && n < sizeof text)
			n += (size_t)snprintf(text + n, sizeof text - n, ",%.*s", (int)strcspn(p, ","), p);
	if (n >= sizeof text || strlen(neutral) >= sizeof t->neutral)
		return host_fail(err, GRADCOMP_ERR_RANGE, "it is longer than %zu characters", sizeof t->neutral - 1);
	st = gradcomp_spec_parse(info, text, out, err);
	if (!st)
		t->plain = (*out)->values;
	/* A guess by names is none of the plugin's words. */
	return t->plugin->neutral ? st : GRADCOMP_OK;
}

static int run_compressor(const kit_options *o, const gradcomp_plugin_info *info, kit_result *out)
{
	fixture t = {.plugin = (const struct gradcomp_compressor_v1 *)(const void *)info,
	             .op = gradcomp_host_operators()};
	gradcomp_spec *spec = NULL, *plain;
	gradcomp_error err = {.status = GRADCOMP_OK};
	int status;
	if (parse(o, info, &spec, &err)) {
		kit_note(out, RULE_PARAMETERS, RESULT_FAIL, "%s is refused: %s", o->parameters, err.text);
		out->rules_broken = 1;
		return 1;
	}
	snprintf(out->spec, sizeof out->spec, "%s", spec->text);
	t.spec = spec->text;
	t.values = spec->values;
	if (kit_neutral(&t, o->parameters, &plain, &err)) {
		kit_note(out, RULE_DESCRIPTOR, RESULT_FAIL, "neutral is '%s', which is refused: %s", t.plugin->neutral,
		         err.text);
		gradcomp_spec_free(spec);
		out->rules_broken = 1;
		return 1;
	}
	status = kit_run_fixture(o, &t, out);
	gradcomp_spec_free(plain);
	gradcomp_spec_free(spec);
	return status;
}

static int run_collective(const kit_options *o, const gradcomp_plugin_info *info, kit_result *out)
{
	const struct gradcomp_collective_v1 *c = (const struct gradcomp_collective_v1 *)(const void *)info;
	gradcomp_spec *spec = NULL;
	gradcomp_error err = {.status = GRADCOMP_OK};
	char text[1000];
	int status;
	snprintf(text, sizeof text, "%s%s%s", info->name, *o->parameters ? ":" : "", o->parameters);
	if (gradcomp_spec_parse(info, text, &spec, &err)) {
		kit_note(out, RULE_PARAMETERS, RESULT_FAIL, "%s is refused: %s", o->parameters, err.text);
		out->rules_broken = 1;
		return 1;
	}
	snprintf(out->spec, sizeof out->spec, "%s", spec->text);
	status = kit_run_collective(o, c, spec->values, out);
	gradcomp_spec_free(spec);
	return status;
}

int kit_run(const kit_options *o, kit_result *out)
{
	const gradcomp_plugin_info *info;
	gradcomp_error err = {.status = GRADCOMP_OK};
	memset(out, 0, sizeof *out);
	for (int r = 0; r < RULES; r++)
		out->result[r] = RESULT_SKIP;
	if (!survives(o, out)) {
		out->rules_broken = 1;
		return 1;
	}
	if (gradcomp_plugin_open(o->path, &out->kind, &info, &err)) {
		kit_note(out, RULE_DESCRIPTOR, RESULT_FAIL, "%s", err.text);
		out->rules_broken = 1;
		return 1;
	}
	snprintf(out->name, sizeof out->name, "%s", info->name);
	snprintf(out->version, sizeof out->version, "%s", info->version);
	snprintf(out->licence, sizeof out->licence, "%s", info->licence);
	out->abi = info->abi_version;
	if (out->kind == GRADCOMP_KIND_COMPRESSOR)
		return run_compressor(o, info, out);
	return run_collective(o, info, out);
}
