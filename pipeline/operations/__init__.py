"""Operations that read or write files, or work on Spark if there is much to do: one file each."""
