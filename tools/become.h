/* Giving up root for good, and reading a setting. */
#ifndef BECOME_H
#define BECOME_H

#include <stddef.h>
#include <sys/types.h>

/* The account's name, or its number in digits. */
#define ACCOUNT_NAME 72
void account_name(uid_t uid, char out[ACCOUNT_NAME]);

/* Groups, then the ids, and no way back. -1 and errno. */
int become_user(uid_t uid);
/* As root: the account that stages what all users share (stage.shared_user); others stay
 * who they are. Prints what is wrong and returns the exit status, else 0. */
int become_shared_user(void);

/* The value of a setting; prints what is wrong and returns the exit status, else 0. */
int value_of_setting(const char *name, char *out, size_t capacity);

#endif
