/* Looks beyond the settings' own form, for gradcomp config --check: could a job use them? */
#ifndef TOOLS_CONFIG_CHECK_H
#define TOOLS_CONFIG_CHECK_H

struct config;

/* Prints a line on stderr for everything that is wrong, and "note:" for what may be right on other nodes. How much is
 * wrong. */
int config_check(const struct config *c);

#endif
