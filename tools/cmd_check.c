/* gradcomp check: what the SPANK plugin asks before a job is submitted. Opens the
 * named plugins and no others, unless there is something to complain about. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static const char usage[] =
	"usage: gradcomp check [--compressor SPEC] [--collective SPEC] [--report FILE]\n"
	"\n"
	"Checks the SPECs, that the compressor works with the collective, and the form of\n"
	"the report's name, as srun does with the options of the same names. What is not\n"
	"given is taken from the environment and gradcomp.conf. Quiet and 0 when all is\n"
	"well; else one message on stderr and 1.\n";

/* The environment the job will see: a value that an option replaces is not
 * complained about. */
static void as_option(const char *variable, const char *value, const char *word, char *names)
{
	if (!value)
		return;
	setenv(variable, value, 1);
	strcat(names, word);
}

int cmd_check(int argc, char **argv)
{
	const char *compressor = NULL, *collective = NULL, *report = NULL;
	const command_option options[] = {{"--compressor", &compressor, NULL},
	                                  {"--collective", &collective, NULL},
	                                  {"--report", &report, NULL},
	                                  {NULL, NULL, NULL}};
	char names[64] = "";
	gradcomp_error err;
	int status = take_options(argc, argv, usage, options, NULL, 0);

	if (status >= 0)
		return status;
	if (report && !*report) {
		fputs("gradcomp: a report needs a file name\n", stderr);
		return 1;
	}
	as_option("GRADCOMP", compressor, "compressor ", names);
	as_option("GRADCOMP_COLLECTIVE", collective, "collective ", names);
	as_option("GRADCOMP_REPORT", report, "report ", names);
	setenv("GRADCOMP_OPTIONS", names, 1);
	return gradcomp_spec_check(compressor, collective, &err) ? failed(&err) : 0;
}
