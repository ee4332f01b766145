/* How fast the machine is there and then. A limit in a test is what an idle machine needs,
 * times pace(): a machine that has other things to do, or a tool that makes programs slow,
 * is no failure of what is tested. */
#ifndef TESTS_SUPPORT_PACE_H
#define TESTS_SUPPORT_PACE_H

#include <stdbool.h>

/* At least 1: by how much longer than on an idle machine a loop takes that keeps every
 * processor busy for 20 ms. Any thread. */
double pace(void);

/* Returns true when so many seconds are within the limit: that of an idle machine, or where that is passed the one
 * of this machine now. */
bool in_time(double seconds, double limit);

#endif
