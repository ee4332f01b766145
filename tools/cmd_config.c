/* gradcomp config: the effective settings. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/config_check.h"
#include "base/json.h"
#include "config/conffile.h"
#include "config/config.h"
#include "security/munge_seal.h"

static const char usage[] = "usage: gradcomp config [--json | --check]\n"
			    "\n"
			    "Prints every setting, its value, and where the value comes from. With --check:\n"
			    "only whether gradcomp.conf, conf.d and the environment can be used, and whether a job\n"
			    "could start with them: SPECs and lists of compressors are resolved, accounts and files\n"
			    "looked for. 1 when not, or when a variable means nothing. What may be right on other\n"
			    "nodes is a note.\n";

static void print_one(void *ctx, const char *name, const char *value, const char *origin, const char *help)
{
	(void)ctx;
	(void)help;
	printf("  %-23s = %-20s (%s)\n", name, value, origin);
}

static void write_one(void *ctx, const char *name, const char *value, const char *origin, const char *help)
{
	jsonw *j = ctx;
	json_put_object(j, NULL);
	json_put_string(j, "name", name);
	json_put_string(j, "value", value);
	json_put_string(j, "origin", origin);
	json_put_string(j, "help", help);
	json_put_end(j);
}

/* *ctx counts. */
static void print_unknown(void *ctx, const char *text)
{
	++*(int *)ctx;
	fprintf(stderr, "gradcomp: %s\n", text);
}

static const char *settings_file(void)
{
	const char *named = getenv("GRADCOMP_CONF");
	return named && *named ? named : conffile_site();
}

gradcomp_status config_print_settings(gradcomp_error *err)
{
	printf("settings (%s%s)\n", settings_file(), access(settings_file(), F_OK) ? " is not there" : "");
	gradcomp_status st = gradcomp_setting_each(print_one, NULL, err);

	if (!st)
		printf("security.secret = auto is %s\n",
		       munge_built()
		               ? "munge in a Slurm step with PMIx (no job without munged's answer), elsewhere pmix"
		               : "pmix: this gradcomp was built without munge");
	return st;
}

int cmd_config(int argc, char **argv)
{
	int as_json = 0, only_check = 0, unknown = 0, status;
	const command_option options[] = {
		{"--json", NULL, &as_json}, {"--check", NULL, &only_check}, {NULL, NULL, NULL}};
	gradcomp_error err;
	char *text = NULL;
	size_t bytes;
	FILE *f;
	jsonw j;
	status = command_take_options(argc, argv, usage, options, NULL, 0);
	if (status >= 0)
		return status;
	config_unknown(print_unknown, &unknown);
	if (only_check) {
		config *c = NULL;

		if (config_load(NULL, &c, &err))
			return command_failed(&err);
		unknown += config_check(c);
		config_free(c);
		return unknown != 0;
	}
	if (!as_json)
		return config_print_settings(&err) ? command_failed(&err) : 0;

	/* Collected first: a wrong configuration prints no half of a document. */
	f = open_memstream(&text, &bytes);
	if (!f) {
		perror("gradcomp");
		return 1;
	}
	json_put_start(&j, f);
	json_put_object(&j, NULL);
	json_put_string(&j, "file", settings_file());
	json_put_array(&j, "settings");
	status = gradcomp_setting_each(write_one, &j, &err);
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
	fclose(f);
	if (!status)
		fputs(text, stdout);
	free(text);
	return status ? command_failed(&err) : 0;
}
