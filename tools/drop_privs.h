/* Giving up root for good, and reading a setting. */
#ifndef TOOLS_DROP_PRIVS_H
#define TOOLS_DROP_PRIVS_H

#include <stddef.h>
#include <sys/types.h>

#include "config/config.h"

/* The account's name, or its number in digits. */
#define ACCOUNT_NAME 72
void drop_privs_account(uid_t uid, char out[ACCOUNT_NAME]);

/* Groups, of which only the account's own stays, then the ids, and no way back. -1 and errno. */
int drop_privs_to_user(uid_t uid);
/* Makes root the account that stages what all users share (stage.shared_user), with all its groups, as in a prolog;
 * others stay who they are. Prints what is wrong and returns the exit status, else 0. */
int drop_privs_to_shared_user(void);

/* The value of a setting; prints what is wrong and returns the exit status, else 0. */
int drop_privs_setting(setting_id id, char *out, size_t capacity);

#endif
