#include "spank/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const option_row options_table[OPTION_COUNT] = {
	[OPTION_COMPRESSOR] =
		{.name = "--gradcomp",
                 .argument = "SPEC|none|off|help",
                 .help = "compress the gradients of this job, for instance powersgd:rank=4; none: send them uncompressed through "
                         "gradcomp; off: leave the job alone; help: list what there is",
                 .check = "--compressor",
                 .variable = "GRADCOMP",
                 .word = "compressor",
                 .none = "off"},
	[OPTION_COLLECTIVE] = {.name = "--gradcomp-collective",
                               .argument = "SPEC",
                               .help = "how the ranks exchange what they compressed, for instance ring",
                               .check = "--collective",
                               .variable = "GRADCOMP_COLLECTIVE",
                               .word = "collective"},
	[OPTION_REPORT] = {.name = "--gradcomp-report",
                           .argument = "FILE|none",
                           .help = "write a report of the job to FILE (JSON)",
                           .check = "--report",
                           .variable = "GRADCOMP_REPORT",
                           .word = "report",
                           .none = "none",
                           .file = true},
	[OPTION_SCHEDULE] = {.name = "--gradcomp-schedule",
                             .argument = "SPEC",
                             .help = "how gradients are merged into messages, for instance mgwfbp",
                             .check = "--schedule",
                             .variable = "GRADCOMP_SCHEDULE",
                             .word = "schedule"},
	[OPTION_RECORD] = {.name = "--gradcomp-record",
                           .argument = "FILE|none",
                           .help = "write the model of this job to FILE, for gradcomp plan",
                           .check = "--record",
                           .variable = "GRADCOMP_RECORD",
                           .word = "record",
                           .none = "none",
                           .file = true},
	[OPTION_ATTACH] =
		{.name = "--gradcomp-auto-attach",
                 .argument = "yes|no|backend",
                 .help = "PyTorch programs that do not call attach(): compress the gradients of their models too (default yes); "
                         "backend: what Gloo would send",
                 .check = "--auto-attach",
                 .variable = "GRADCOMP_AUTO_ATTACH",
                 .word = "auto_attach"},
	[OPTION_ON_FAILURE] =
		{.name = "--gradcomp-on-failure",
                 .argument = "abort|shrink",
                 .help = "when a rank is lost: the job ends (default), or a program that can shrink goes on without it",
                 .check = "--on-failure",
                 .variable = "GRADCOMP_ON_FAILURE",
                 .word = "on_failure"},
	[OPTION_STAGE] =
		{.name = "--gradcomp-stage",
                 .argument = "SPEC|none|help",
                 .help = "copy datasets to a cache on every node before the tasks start, for instance /nfs/images; they find the "
                         "copy in GRADCOMP_DATA",
                 .none = "none"},
};

int options_register(spank_t sp, spank_opt_cb_f cb)
{
	/* Optional arguments (has_arg 2) end srun with an assertion: `help` and `none`
	 * are values instead. Slurm takes a copy. */
	for (int i = 0; i < OPTION_COUNT; i++) {
		struct spank_option o = {
			.name = (char *)options_table[i].name + 2,
			.arginfo = (char *)options_table[i].argument,
			.usage = (char *)options_table[i].help,
			.has_arg = 1,
			.val = i,
			.cb = cb,
		};
		if (spank_option_register(sp, &o) != ESPANK_SUCCESS)
			return -1;
	}
	return 0;
}

static bool known(int which)
{
	return which >= 0 && which < OPTION_COUNT;
}

const char *option_name(int which)
{
	return known(which) ? options_table[which].name : "an unknown option";
}

static const char *fault(const char *value)
{
	if (!value || !*value)
		return "needs a value";
	if (strlen(value) >= OPTION_BYTES)
		return "has a value of more than 4095 bytes";
	for (const char *c = value; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return "has a control character in its value";
	if (strchr(value, '#'))
		return "has a '#' in its value, where an #SBATCH line would end";
	return NULL;
}

int options_set(options *o, int which, const char *value, char *why, size_t size)
{
	if (!known(which)) {
		snprintf(why, size, "no option has number %d", which);
		return -1;
	}
	const char *wrong = fault(value);
	if (wrong) {
		snprintf(why, size, "%s %s", option_name(which), wrong);
		return -1;
	}
	char *copy = strdup(value);
	if (!copy) {
		snprintf(why, size, "%s: out of memory", option_name(which));
		return -1;
	}
	free(o->value[which]);
	o->value[which] = copy;
	return 0;
}

const char *options_value(const options *o, int which)
{
	const char *v = o->value[which], *none = options_table[which].none;
	return v && none && !strcmp(v, none) ? NULL : v;
}

bool options_off(const options *o)
{
	const char *v = o->value[OPTION_COMPRESSOR];
	return v && !strcmp(v, "off");
}

bool options_any(const options *o)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		if (o->value[i])
			return true;
	return false;
}

void options_clear(options *o)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		free(o->value[i]);
	memset(o, 0, sizeof *o);
}

/* Values hold no control characters, so tab and newline can part them. */
char *options_join(const options *sets, int n)
{
	size_t bytes = 1;
	for (int k = 0; k < n; k++)
		for (int i = 0; i < OPTION_COUNT; i++)
			bytes += 1 + (sets[k].value[i] ? strlen(sets[k].value[i]) : 0);
	char *text = malloc(bytes), *at = text;
	if (!text)
		return NULL;
	*at = 0;
	for (int k = 0; k < n; k++)
		for (int i = 0; i < OPTION_COUNT; i++)
			at += sprintf(at, "%s%c", sets[k].value[i] ? sets[k].value[i] : "",
			              i + 1 < OPTION_COUNT ? '\t' : '\n');
	return text;
}

int options_split(const char *text, int k, options *o, char *why, size_t size)
{
	options_clear(o);
	for (; k > 0 && text; k--) {
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	if (k < 0 || !text || !*text) {
		snprintf(why, size, "the options of this component of the job are not known");
		return -1;
	}
	for (int i = 0; i < OPTION_COUNT; i++) {
		size_t n = strcspn(text, "\t\n");
		char value[OPTION_BYTES];
		if (n >= sizeof value || text[n] != (i + 1 < OPTION_COUNT ? '\t' : '\n')) {
			snprintf(why, size, "%s is damaged", OPTIONS_COMPONENTS);
			return -1;
		}
		memcpy(value, text, n);
		value[n] = 0;
		text += n + 1;
		if (n && options_set(o, i, value, why, size) < 0)
			return -1;
	}
	return 0;
}
