/* Messages of a service, out and in, and what is wrong with a peer. Those that go out are kept until they are sent; of
 * those that come, one from each peer is received at a time. */
#include <stdlib.h>

#include "io/dataset/net/service.h"
#include "job/job.h"

void service_failed(service *s, gradcomp_status st, const gradcomp_error *err)
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

void service_blame(service *s, const peer *p, gradcomp_status st, const char *what)
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
	service_failed(s, st, &err);
}

void service_wrong(service *s, const peer *p, const char *what)
{
	service_blame(s, p, GRADCOMP_ERR_MISMATCH, what);
}

void service_open(service *s, peer *p)
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
	receive_header(s, p);
}

/* ---- out ---- */

out *out_new(service *s, unsigned sends)
{
	out *o = calloc(1, sizeof *o + sends * sizeof o->req[0]);

	if (o)
		o->block = -1;
	else if (!s->status)
		service_failed(s, GRADCOMP_ERR_NOMEM, NULL);
	return o;
}

void out_add(peer *p, out *o)
{
	o->next = p->outs;
	p->outs = o;
	p->nouts++;
}

void out_free(out *o)
{
	for (unsigned i = 0; i < o->nowned; i++)
		free(o->owned[i]);
	free(o->owned);
	free(o->pack);
	free(o->table);
	free(o);
}

void out_post(service *s, peer *p, out *o, const void *buf, uint64_t bytes)
{
	gradcomp_error err;
	gradcomp_status st;

	service_open(s, p);
	p->used = ++s->uses;
	st = s->status ? s->status : s->links->send(s->links->ctx, p->rank, buf, bytes, &o->req[o->n++], &err);

	s->posted = true;
	if (st && !s->status)
		service_failed(s, st, &err);
}

void out_header(service *s, peer *p, header h)
{
	out *o = out_new(s, 1);

	if (!o)
		return;
	o->h = h;
	out_add(p, o);
	out_post(s, p, o, &o->h, sizeof o->h);
}

/* ---- in ---- */

void receive_post(service *s, peer *p, void *buf, uint64_t bytes, gradcomp_request *req)
{
	gradcomp_error err;
	gradcomp_status st = s->status ? s->status : s->links->recv(s->links->ctx, p->rank, buf, bytes, req, &err);

	s->posted = true;
	if (st && !s->status)
		service_failed(s, st, &err);
}

void receive_header(service *s, peer *p)
{
	p->state = IN_HEAD;
	receive_post(s, p, &p->in, sizeof p->in, &p->req);
}

slot *receive_slot(service *s, const peer *p, uint64_t index)
{
	gradcomp_dataset *ds = s->ds;
	sample_owner at;

	if (index < ds->o.count) {
		owner_of(ds, index, &at);
		if (at.node == ds->node)
			return &ds->slots[at.slot];
	}
	service_wrong(s, p, "named a sample that this node does not own");
	return NULL;
}
