"""Several processes that compute together: collectives over MPI, how they fail, and how one looks into both.

`mpi.initialize` joins the processes and `mpi.world` is what they communicate through (`communicator.Communicator`). mpi4py is imported only
where a launcher has started the process, or doctor is asked about it.
"""
