! A Fortran program that knows nothing of gradcomp (pmpi.t): prints what pmpi.c prints for a case.
program pmpi
   use mpi
   implicit none
   integer, parameter :: n = 100000
   integer :: rank, ranks, i, ierr
   real :: x(n), y(n), off(2)
   call MPI_Init(ierr)
   call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
   do i = 1, n
      y(i) = real(mod(i, 100) + rank)
   end do
   x = y
   call MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
   off(1) = wrong_by()
   call MPI_Allreduce(y, x, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
   off(2) = wrong_by()
   if (rank == 0) then
      if (maxval(off) == 0) then
         print '(a)', 'fortran: exact'
      else if (maxval(off) <= ranks * ranks * 102 / 254.0 .and. minval(off) > 0) then
         print '(a)', 'fortran: within'
      else
         print '(a)', 'fortran: WRONG'
      end if
   end if
   call MPI_Finalize(ierr)
contains
   real function wrong_by()
      wrong_by = 0
      do i = 1, n
         wrong_by = max(wrong_by, abs(x(i) - real(ranks * mod(i, 100) + ranks * (ranks - 1) / 2)))
      end do
   end function
end program
