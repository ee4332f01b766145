/* The arguments on the plugin's line in plugstack.conf. */
#ifndef SPANK_ARGUMENTS_H
#define SPANK_ARGUMENTS_H

#include <limits.h>

#define ACCOUNT_BYTES 64

typedef struct arguments {
	char helper[PATH_MAX];         /* helper=FILE: the gradcomp command */
	char conf[PATH_MAX];           /* conf=FILE: its gradcomp.conf; "": the built-in path */
	char python[PATH_MAX];         /* python=DIR: the Python package, put before the tasks' own PYTHONPATH */
	char records[PATH_MAX];        /* records=DIR: what jobs did on this node, for their epilogs */
	char plan_user[ACCOUNT_BYTES]; /* plan_user=ACCOUNT: reads gradcomp.conf for prologs; "": uid 65534 */
	int stage_timeout;             /* stage_timeout=SECONDS; 0: no limit */
	char error[512];               /* "" or what is wrong with the line */
} arguments;

/* Strict: an unknown or repeated argument is an error. It is kept in a->error and not
 * returned: a plugin whose init fails makes every job of the site fail, and drains nodes. So
 * only jobs that use gradcomp are refused. */
void arguments_parse(arguments *a, int ac, char **av);

#endif
