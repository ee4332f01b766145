/* How `gradcomp run` tells its ranks where they find each other, beside RANK and WORLD_SIZE: the
 * addresses and the token of its rendezvous server. */
#ifndef BOOTSTRAP_RUN_ENV_H
#define BOOTSTRAP_RUN_ENV_H

#define RUN_ENV_WHERE "GRADCOMP_RUN"
#define RUN_ENV_TOKEN "GRADCOMP_RUN_TOKEN"

#endif
