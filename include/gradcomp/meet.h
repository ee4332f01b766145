/* gradcomp/meet.h: a place where processes that nobody introduces find each other.
 *
 * The stagers of a step run before its tasks do, when PMIx is not there yet. srun
 * keeps a place for them, a small key-value server on one TCP port, and each of them
 * brings a gradcomp_store on it to gradcomp_job_create():
 *
 *     gradcomp_meet *place;                              // beside srun
 *     gradcomp_meet_open(NULL, 4, &place, &err);
 *     hand_out(gradcomp_meet_where(place), gradcomp_meet_token(place));
 *     gradcomp_meet_serve(place, fd, &err);
 *
 *     gradcomp_guest *guest;                             // on node i of 4
 *     gradcomp_guest_options who = { .struct_size = sizeof who, .where = w, .token = t, .rank = i, .nranks = 4 };
 *     gradcomp_meet_join(&who, &guest, &err);            // returns when all 4 have come
 *     gradcomp_job_create(&(gradcomp_job_options){ .struct_size = ..., .store = gradcomp_meet_store(guest) }, ...);
 *     gradcomp_meet_leave(guest);
 *
 * The token is a secret. Who does not have it is not let in and reads nothing of what
 * is exchanged, which only the guests open (doc/wire-format.md).
 *
 * Threads: one at a time for each object. */
#ifndef GRADCOMP_MEET_H
#define GRADCOMP_MEET_H

#include "gradcomp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gradcomp_meet gradcomp_meet;
typedef struct gradcomp_guest gradcomp_guest;

/* Listens for `nranks` guests, 1 to 65536, on a free port (setting
 * stage.meet_ports). `settings` as in gradcomp_job_options; may be NULL. */
GRADCOMP_EXPORT gradcomp_status gradcomp_meet_open(const char *const *settings, int nranks, gradcomp_meet **out,
                                                   gradcomp_error *err);
/* Addresses, "10.0.0.9/24@41257,fd00::9/64@41257", and the token: printable, without
 * blanks. The token is sealed by MUNGE for this user alone where security.secret
 * allows and munged answers. Owned by the place. */
GRADCOMP_EXPORT const char *gradcomp_meet_where(const gradcomp_meet *m);
GRADCOMP_EXPORT const char *gradcomp_meet_token(const gradcomp_meet *m);
/* Serves until all guests have come and gone, or `until` (a descriptor; -1: none)
 * is at its end. Blocks all signals' work: it ends by these alone. */
GRADCOMP_EXPORT gradcomp_status gradcomp_meet_serve(gradcomp_meet *m, int until, gradcomp_error *err);
/* NULL is fine. */
GRADCOMP_EXPORT void gradcomp_meet_close(gradcomp_meet *m);

typedef struct gradcomp_guest_options {
	uint32_t struct_size;
	int32_t rank, nranks;
	uint32_t reserved0;
	const char *where, *token;
	double timeout; /* seconds for all to come; 0: setting stage.meet_timeout */
	/* Asked about ten times a second; non-zero gives up with STATE. May be NULL. */
	int (*stop)(void *ctx);
	void *ctx;
} gradcomp_guest_options;

/* Returns when all guests have come. IO: the place cannot be reached; AUTH: it does
 * not have the token; TIMEOUT: names the ranks that did not come; PEER: one came and
 * died. */
GRADCOMP_EXPORT gradcomp_status gradcomp_meet_join(const gradcomp_guest_options *options, gradcomp_guest **out,
                                                   gradcomp_error *err);
/* Keys of at most 63 bytes, values of at most 4096, 8 of them a guest; the first
 * value of a key stays. Owned by the guest. */
GRADCOMP_EXPORT const gradcomp_store *gradcomp_meet_store(const gradcomp_guest *g);
/* NULL is fine. */
GRADCOMP_EXPORT void gradcomp_meet_leave(gradcomp_guest *g);

#ifdef __cplusplus
}
#endif
#endif
