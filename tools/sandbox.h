/* Gives up what the stager does not need, before it hears anything from the network. */
#ifndef TOOLS_SANDBOX_H
#define TOOLS_SANDBOX_H

/* From now on this process and its threads can start no program, trace or read no other process,
 * take no other identity, and reach no part of the kernel that copying files has no use for: those
 * calls fail with EPERM. There is no way back. Does nothing where the kernel has no seccomp or
 * gradcomp was built without libseccomp. */
void sandbox_enter(void);

#endif
