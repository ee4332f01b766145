/* Messages of a service, out and in, and what is wrong with a peer. Those that go out are kept until they are sent; of
 * those that come, one from each peer is received at a time. */
#include <stdlib.h>

#include "io/dataset/net/service.h"
#include "job/job.h"

void message_failed(service *s, gradcomp_status st, const gradcomp_error *err)
{
	if (s->status)
		return;
	s->status = st;
	if (err) {
		s->error = *err;
		return;
	}
	/* A failure of this rank's ends the job for all. */
	job_fail(s->ds->group->job, st, "no memory to serve a dataset");
	transport_failure(s->ds->group->job->transport, &s->error);
}

void message_blame(service *s, const peer *p, gradcomp_status st, const char *what)
{
	gradcomp_dataset *ds = s->ds;
	int world = ds->group->ranks[p->rank];
	gradcomp_error err;
	error_set(&err, st, "rank %d on %s %s, says rank %d", world, transport_host(ds->group->job->transport, world),
	          what, ds->group->ranks[ds->rank]);
	if (st == GRADCOMP_ERR_TIMEOUT)
		transport_overdue(ds->group->job->transport, world, err.text);
	else
		transport_fail(ds->group->job->transport, st, world, err.text);
	message_failed(s, st, &err);
}

void message_wrong(service *s, const peer *p, const char *what)
{
	message_blame(s, p, GRADCOMP_ERR_MISMATCH, what);
}

void message_open_peer(service *s, peer *p)
{
	if (p->link != LINK_CLOSED)
		return;
	p->link = LINK_OPEN;
	p->crossed = p->called = false;
	p->stays = 0;
	p->used = ++s->uses;
	s->nlinks++;
	if (s->nlinks > s->nlinks_most)
		s->nlinks_most = s->nlinks;
	message_receive_header(s, p);
}

out *message_new(service *s, unsigned sends)
{
	out *o = calloc(1, sizeof *o + sends * sizeof o->req[0]);
	if (o)
		o->block = -1;
	else if (!s->status)
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
	return o;
}

void message_add(peer *p, out *o)
{
	o->next = p->outs;
	p->outs = o;
	p->nouts++;
}

void message_free(out *o)
{
	for (unsigned i = 0; i < o->nowned; i++)
		free(o->owned[i]);
	free(o->owned);
	free(o->pack);
	free(o->table);
	free(o);
}

void message_post(service *s, peer *p, out *o, const void *buf, uint64_t bytes)
{
	gradcomp_error err;
	gradcomp_status st;
	message_open_peer(s, p);
	p->used = ++s->uses;
	st = s->status ? s->status : s->links->send(s->links->ctx, p->rank, buf, bytes, &o->req[o->n++], &err);

	s->posted = true;
	if (st && !s->status)
		message_failed(s, st, &err);
}

void message_header(service *s, peer *p, header h)
{
	out *o = message_new(s, 1);
	if (!o)
		return;
	o->h = h;
	message_add(p, o);
	message_post(s, p, o, &o->h, sizeof o->h);
}

void message_receive(service *s, peer *p, void *buf, uint64_t bytes, gradcomp_request *req)
{
	gradcomp_error err;
	gradcomp_status st = s->status ? s->status : s->links->recv(s->links->ctx, p->rank, buf, bytes, req, &err);
	s->posted = true;
	if (st && !s->status)
		message_failed(s, st, &err);
}

void message_receive_header(service *s, peer *p)
{
	p->state = IN_HEAD;
	message_receive(s, p, &p->in, sizeof p->in, &p->req);
}

slot *message_slot(service *s, const peer *p, uint64_t index)
{
	gradcomp_dataset *ds = s->ds;
	sample_owner at;
	if (index < ds->o.count) {
		owner_of(ds, index, &at);
		if (at.node == ds->node)
			return &ds->slots[at.slot];
	}
	message_wrong(s, p, "named a sample that this node does not own");
	return NULL;
}
