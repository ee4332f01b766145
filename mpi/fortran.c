/* Calls of Fortran programs of Open MPI, whose Fortran library calls PMPI alone, in front of which only these names can
 * come: that of mpif.h and of the module mpi, and that by which the module mpi_f08 calls it. MPICH's calls what C
 * programs call. */
#include <mpi.h>

#ifdef OPEN_MPI
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
/* Declares FUNCTION as mpi_NAME_, and ompi_NAME_f as the same. */
#define FORTRAN(name, ...) \
	EXPORT void mpi_##name##_(__VA_ARGS__); \
	EXPORT void ompi_##name##_f(__VA_ARGS__) __attribute__((alias("mpi_" #name "_"))); \
	void mpi_##name##_(__VA_ARGS__)

static struct {
	__typeof__(PMPI_Comm_c2f) *Comm_c2f;
	__typeof__(PMPI_Comm_f2c) *Comm_f2c;
	__typeof__(PMPI_Op_f2c) *Op_f2c;
	__typeof__(PMPI_Request_c2f) *Request_c2f;
	__typeof__(PMPI_Type_f2c) *Type_f2c;
	const void *in_place, *bottom; /* variables that stand for it there */
} fortran;

static void find(void)
{
	*(void **)&fortran.Comm_c2f = dlsym(RTLD_DEFAULT, "PMPI_Comm_c2f");
	*(void **)&fortran.Comm_f2c = dlsym(RTLD_DEFAULT, "PMPI_Comm_f2c");
	*(void **)&fortran.Op_f2c = dlsym(RTLD_DEFAULT, "PMPI_Op_f2c");
	*(void **)&fortran.Request_c2f = dlsym(RTLD_DEFAULT, "PMPI_Request_c2f");
	*(void **)&fortran.Type_f2c = dlsym(RTLD_DEFAULT, "PMPI_Type_f2c");
	fortran.in_place = dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_");
	fortran.bottom = dlsym(RTLD_DEFAULT, "mpi_fortran_bottom_");
}

/* A buffer as C has it. Comes first in every function. */
static void *buffer(void *p)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find);
	return p && p == fortran.in_place ? MPI_IN_PLACE : p && p == fortran.bottom ? MPI_BOTTOM : p;
}

static void give(MPI_Fint *ierr, int rc)
{
	if (ierr)
		*ierr = rc;
}

FORTRAN(init, MPI_Fint *ierr)
{
	give(ierr, MPI_Init(NULL, NULL));
}

FORTRAN(init_thread, const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *ierr)
{
	give(ierr, MPI_Init_thread(NULL, NULL, *required, provided));
}

FORTRAN(finalize, MPI_Fint *ierr)
{
	give(ierr, MPI_Finalize());
}

FORTRAN(comm_free, MPI_Fint *comm, MPI_Fint *ierr)
{
	(void)buffer(NULL);
	MPI_Comm c = fortran.Comm_f2c(*comm);
	int rc = MPI_Comm_free(&c);
	if (!rc)
		*comm = fortran.Comm_c2f(c);
	give(ierr, rc);
}

FORTRAN(comm_disconnect, MPI_Fint *comm, MPI_Fint *ierr)
{
	(void)buffer(NULL);
	MPI_Comm c = fortran.Comm_f2c(*comm);
	int rc = MPI_Comm_disconnect(&c);
	if (!rc)
		*comm = fortran.Comm_c2f(c);
	give(ierr, rc);
}

FORTRAN(allreduce, void *in, void *out, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
        const MPI_Fint *comm, MPI_Fint *ierr)
{
	in = buffer(in);
	give(ierr, MPI_Allreduce(in, buffer(out), *count, fortran.Type_f2c(*type), fortran.Op_f2c(*op),
	                         fortran.Comm_f2c(*comm)));
}

FORTRAN(iallreduce, void *in, void *out, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
        const MPI_Fint *comm, MPI_Fint *request, MPI_Fint *ierr)
{
	MPI_Request r;
	in = buffer(in);
	int rc = MPI_Iallreduce(in, buffer(out), *count, fortran.Type_f2c(*type), fortran.Op_f2c(*op),
	                        fortran.Comm_f2c(*comm), &r);
	if (!rc)
		*request = fortran.Request_c2f(r);
	give(ierr, rc);
}

FORTRAN(allgather, void *in, const MPI_Fint *in_count, const MPI_Fint *in_type, void *out, const MPI_Fint *out_count,
        const MPI_Fint *out_type, const MPI_Fint *comm, MPI_Fint *ierr)
{
	in = buffer(in);
	give(ierr, MPI_Allgather(in, *in_count, fortran.Type_f2c(*in_type), buffer(out), *out_count,
	                         fortran.Type_f2c(*out_type), fortran.Comm_f2c(*comm)));
}

FORTRAN(reduce_scatter, void *in, void *out, const MPI_Fint *counts, const MPI_Fint *type, const MPI_Fint *op,
        const MPI_Fint *comm, MPI_Fint *ierr)
{
	in = buffer(in);
	give(ierr, MPI_Reduce_scatter(in, buffer(out), counts, fortran.Type_f2c(*type), fortran.Op_f2c(*op),
	                              fortran.Comm_f2c(*comm)));
}

FORTRAN(reduce_scatter_block, void *in, void *out, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
        const MPI_Fint *comm, MPI_Fint *ierr)
{
	in = buffer(in);
	give(ierr, MPI_Reduce_scatter_block(in, buffer(out), *count, fortran.Type_f2c(*type), fortran.Op_f2c(*op),
	                                    fortran.Comm_f2c(*comm)));
}
#endif
