/* The states of a link: what follows what, and a kind that takes over from one that has refused. */
#include "tests/support/tap.h"

#include "base/log.h"
#include "transport/link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = PEER_LOST + 1 };
static const char *const names[STATES] = {"new", "called", "joining", "setting up", "open", "leaving", "left", "lost"};
/* Each may be followed by these, by their initials: */
static const char *const next[STATES] = {"cj", "j", "nso", "jox", "lx", "L", "", "L"};
static const char initials[STATES] = {'n', 'c', 'j', 's', 'o', 'l', 'L', 'x'};
static const log_sink quiet = {(gradcomp_log_level)-1, 0};

static transport *make(void)
{
	transport_options o = {.nranks = 1,
	                       .timeout = 10,
	                       .wait_timeout = 10,
	                       .streams = 1,
	                       .chunk = 65536,
	                       .allow = "shm,tcp",
	                       .log = &quiet};
	transport *t;
	return transport_listen(&o, &t, NULL) ? NULL : t;
}

static void transitions(void)
{
	int tried = 0, wrong = 0;
	for (int from = 0; from < STATES; from++)
		for (int to = 0; to < STATES; to++, tried++) {
			transport *t = make();
			channel c = {.t = t};
			peer_link l = {.c = &c, .state = (link_phase)from};
			bool may = from == to || strchr(next[from], initials[to]), right;

			if (!t)
				abort();
			link_enter(&l, (link_phase)to);
			right = may ? !transport_failed(t) && (int)l.state == to
			            : (int)l.state == from && strstr(t->failure.error.text, names[from]) &&
			                        strstr(t->failure.error.text, names[to]);
			if (!right)
				printf("# %s, then %s: %s\n", names[from], names[to], t->failure.error.text);
			wrong += !right;
			transport_stop(t, NULL);
		}
	is_int(wrong, 0, "what may follow does, and what may not fails the job: %d pairs of states", tried);
}

static void ended(void)
{
	transport *t = make();
	channel c = {.t = t};
	peer_link l = {.c = &c, .state = PEER_OPEN};
	if (!ok(t, "a transport"))
		return;
	ok(link_up(&l) && !link_leaves(&l) && !link_ended(&l), "open");
	link_eof(&l);
	ok(link_ended(&l) && !link_leaves(&l), "its end without a goodbye");
	link_eof(&l);
	link_goodbye(&l);
	ok(link_ended(&l) && link_leaves(&l), "the goodbye, read later");
	l.state = PEER_OPEN;
	link_goodbye(&l);
	link_goodbye(&l);
	ok(link_up(&l) && link_leaves(&l) && !link_ended(&l), "a goodbye before the end");
	link_eof(&l);
	ok(link_ended(&l) && link_leaves(&l) && !transport_failed(t), "... and the end");
	transport_stop(t, NULL);
}

static link_opened refuse(peer_link *l)
{
	link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
	return LINK_REFUSED;
}

static void takes_over(void)
{
	static const link_kind kind = {.name = "other", .open = refuse};
	static const link_ops none = {0};
	transport *t = make();
	channel c = {.t = t};
	link_use use = {.kind = &kind};
	peer_link l = {.c = &c, .state = PEER_SETTING_UP, .ops = &none, .use = NULL, .passed = -1};
	if (!ok(t, "a transport"))
		return;
	link_turn(&l, &use);
	ok(l.use == &use && transport_failed(t), "a kind takes over, and has no memory");
	ok(!link_up(&l) && !l.ops, "the link has no operations any more, which closing it would call");
	transport_stop(t, NULL);
}

int main(void)
{
	transitions();
	ended();
	takes_over();
	return done_testing();
}
