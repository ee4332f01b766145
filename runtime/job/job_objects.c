/* A job that goes on without ranks takes along the objects that outlive them: this file alone calls back into those. */
#include "job/job.h"

void job_detach_objects(gradcomp_job *job)
{
	for (job_object *o = job->objects; o; o = o->next)
		o->detach(o);
}

gradcomp_status job_attach_objects(gradcomp_job *job, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (job_object *o = job->objects; !st && o; o = o->next)
		st = o->attach(o, err);
	return st;
}

void job_settle_objects(gradcomp_job *job, uint64_t done)
{
	for (job_object *o = job->objects, *next; o; o = next) {
		next = o->next;
		if (o->pending ? o->id > done : o->freeing && o->freeing <= done) {
			job_remove_object(job, o);
			o->drop(o);
			continue;
		}
		if (o->pending)
			job->made = o->of;
		o->pending = false;
		o->freeing = 0;
	}
}

void job_sweep_objects(gradcomp_job *job)
{
	for (job_object *o = job->objects, *next; o; o = next) {
		next = o->next;
		if (!o->pending && !o->freeing && o->of != job->made)
			continue;
		job_remove_object(job, o);
		o->detach(o);
		o->drop(o);
	}
}
