/* gradcomp check: what the SPANK plugin asks before a job is submitted. Opens the
 * named plugins and no others, unless there is something to complain about. */
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"

static const char usage[] =
	"usage: gradcomp check [--compressor SPEC] [--collective SPEC] [--report FILE] [--schedule SPEC] [--record FILE]\n"
	"\n"
	"Checks the SPECs, that the compressor works with the collective, and the form of\n"
	"the files' names, as srun does with the options of the same names. What is not\n"
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
	const char *compressor = NULL, *collective = NULL, *report = NULL, *schedule = NULL, *record = NULL;
	const command_option options[] = {{"--compressor", &compressor, NULL},
	                                  {"--collective", &collective, NULL},
	                                  {"--report", &report, NULL},
	                                  {"--schedule", &schedule, NULL},
	                                  {"--record", &record, NULL},
	                                  {NULL, NULL, NULL}};
	char names[80] = "";
	gradcomp_error err;
	int status = take_options(argc, argv, usage, options, NULL, 0);

	if (status >= 0)
		return status;
	if ((report && !*report) || (record && !*record)) {
		fprintf(stderr, "gradcomp: a %s needs a file name\n", report && !*report ? "report" : "record");
		return 1;
	}
	as_option("GRADCOMP", compressor, "compressor ", names);
	as_option("GRADCOMP_COLLECTIVE", collective, "collective ", names);
	as_option("GRADCOMP_REPORT", report, "report ", names);
	as_option("GRADCOMP_SCHEDULE", schedule, "schedule ", names);
	as_option("GRADCOMP_RECORD", record, "record ", names);
	setenv("GRADCOMP_OPTIONS", names, 1);
	return gradcomp_spec_check(compressor, collective, &err) || gradcomp_schedule_check(NULL, &err) ? failed(&err) : 0;
}
