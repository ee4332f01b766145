/* How fast the machine is there and then. A limit in a test is what an idle machine needs,
 * times pace(): a machine that has other things to do, or a tool that makes programs slow,
 * is no failure of what is tested. */
#ifndef TEST_PACE_H
#define TEST_PACE_H

/* At least 1: by how much longer than on an idle machine a loop takes that keeps every
 * processor busy for 20 ms. Any thread. */
double pace(void);

#endif
