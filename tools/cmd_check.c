/* gradcomp check: what the SPANK plugin asks before a job is submitted. Opens the
 * named plugins and no others, unless there is something to complain about. */
#include "api/query.h"
#include "tools/commands.h"

#include <stdio.h>

static const char usage[] =
	"usage: gradcomp check [--compressor SPEC] [--collective SPEC] [--report FILE] [--schedule SPEC] [--record FILE]\n"
	"       [--auto-attach yes|no|backend] [--on-failure abort|shrink]\n"
	"\n"
	"Checks the SPECs, that the compressor works with the collective, and the form of\n"
	"the files' names, as srun does with the options of the same names. What is not\n"
	"given is taken from the environment and gradcomp.conf. Quiet and 0 when all is\n"
	"well; else one message on stderr and 1.\n";

int cmd_check(int argc, char **argv)
{
	const char *compressor = NULL, *collective = NULL, *report = NULL, *schedule = NULL, *record = NULL,
		   *attach = NULL, *on_failure = NULL;
	const command_option options[] = {{"--compressor", &compressor, NULL}, {"--collective", &collective, NULL},
	                                  {"--report", &report, NULL},         {"--schedule", &schedule, NULL},
	                                  {"--record", &record, NULL},         {"--auto-attach", &attach, NULL},
	                                  {"--on-failure", &on_failure, NULL}, {NULL, NULL, NULL}};
	gradcomp_error err;
	int status = command_take_options(argc, argv, usage, options, NULL, 0);
	if (status >= 0)
		return status;
	if ((report && !*report) || (record && !*record)) {
		fprintf(stderr, "gradcomp: a %s needs a file name\n", report && !*report ? "report" : "record");
		return 1;
	}
	const config_option given[] = {{SET_GRADCOMP_COMPRESSOR, compressor}, {SET_GRADCOMP_COLLECTIVE, collective},
	                               {SET_GRADCOMP_REPORT, report},         {SET_GRADCOMP_SCHEDULE, schedule},
	                               {SET_GRADCOMP_RECORD, record},         {SET_GRADCOMP_AUTO_ATTACH, attach},
	                               {SET_GRADCOMP_ON_FAILURE, on_failure}, {SET_COUNT, NULL}};
	return query_check_options(given, compressor, collective, &err) ? command_failed(&err) : 0;
}
