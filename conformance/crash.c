#include "conformance/crash.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kit *watched;

/* Names what decides how long it is. */
static const char *length_of(const char *what)
{
	return strstr(what, "payload") || strstr(what, "coded run")
	               ? "the bound of plan() or code_bound() is too small, or a loop runs too far"
	       : strstr(what, "scratch")  ? "scratch_bytes of plan() is too small"
	       : strstr(what, "instance") ? "create() allocates too little, or an index belongs to another bucket"
	       : strstr(what, "peer") || strstr(what, "state that is")
	               ? "a length, count or index is used before it is compared"
	               : "a loop runs over the layout, or one number too far; buckets of 0 and 1 numbers occur";
}

/* Where, in words: vsnprintf is not on the list of what a handler may call, but this
 * process ends here whatever comes. */
static void report(int number, const void *address)
{
	const char *function = call_name(call_now->which);
	guard_hit hit;
	rule r = watched->crash;
	if (call_now->which == CALL_NONE) {
		kit_fail(watched, r, "signal %d outside of the plugin's functions", number);
		return;
	}
	if (number != SIGSEGV && number != SIGBUS) {
		kit_fail(watched, r, "signal %d%s in %s() of round %u, rank %d of %d: %s", number,
		         number == SIGABRT ? " (an assertion, or an exception that nobody caught)" : "", function,
		         call_now->round, call_now->rank, call_now->nranks, rule_text(r));
		return;
	}
	if (!guard_find(address, &hit)) {
		kit_fail(watched, r,
		         "%s() of round %u, rank %d of %d, touches address %p, which is no buffer, or one that was "
		         "given back: %s\n"
		         "%s",
		         function, call_now->round, call_now->rank, call_now->nranks, address, rule_text(r),
		         (uintptr_t)address < 4096
		                 ? "a pointer that is NULL: memory that was not there, or `flat` of a SHAPED plugin"
		                 : "an index far out of its array, or a pointer that was kept after the call");
		return;
	}
	if (call_now->which == CALL_ENCODE || call_now->which == CALL_CODE)
		r = RULE_BOUNDS; /* these know nothing of what peers send */
	if (hit.offset >= 0 && (size_t)hit.offset >= hit.bytes) {
		kit_fail(watched, r == RULE_PEERS ? r : RULE_BOUNDS,
		         "%s() of round %u, rank %d of %d, reaches %td bytes behind the end of %s (%zu bytes)\n%s",
		         function, call_now->round, call_now->rank, call_now->nranks, hit.offset - (ptrdiff_t)hit.bytes,
		         hit.what, hit.bytes, length_of(hit.what));
		return;
	}
	if (hit.before) {
		kit_fail(watched, r == RULE_PEERS ? r : RULE_BOUNDS,
		         "%s() of round %u, rank %d of %d, reaches %td bytes before %s (%zu bytes)", function,
		         call_now->round, call_now->rank, call_now->nranks, -hit.offset, hit.what, hit.bytes);
		return;
	}
	if (hit.access == GUARD_SHUT) {
		kit_fail(watched, RULE_DEVICE, "%s() touches %s, which is device memory, without an operator", function,
		         hit.what);
		return;
	}
	r = strstr(hit.what, "instance")                                      ? RULE_THREADS
	    : call_now->which == CALL_ENCODE || call_now->which == CALL_MERGE ? RULE_DECODE_ONLY
	                                                                      : RULE_BOUNDS;
	kit_fail(watched, r, "%s() of round %u, rank %d of %d, writes to %s, which it may only read", function,
	         call_now->round, call_now->rank, call_now->nranks, hit.what);
}

static void crashed(int number, siginfo_t *info, void *context)
{
	(void)context;
	signal(number, SIG_DFL);
	watched->crash_signal = number;
	report(number, info->si_addr);
	_exit(CRASH_STATUS);
}

void crash_stack(void)
{
	static char room[65536];
	const stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
	sigaltstack(&stack, NULL);
}

void crash_watch(kit *k)
{
	static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
	static char room[65536]; /* a stack that has overflowed is of no use */
	const stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
	struct sigaction sa = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER, .sa_sigaction = crashed};
	watched = k;
	sigaltstack(&stack, NULL);
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		sigaction(numbers[i], &sa, NULL);
}
