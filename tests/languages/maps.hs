-- Tables next to code: what lies in front of an entry is data of the run-time. Maps, laziness, exceptions, threads, garbage collection.
import qualified Data.Map.Strict as M
import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Char (ord)
import Data.IORef
import Data.List (foldl', sortBy)
import System.Mem (performGC)

data Shape = Circle Int | Square Int | Both Shape Shape

area :: Shape -> Int
area (Circle r) = 3 * r * r
area (Square a) = a * a
area (Both a b) = area a + area b

class Animal a where
  noise :: a -> Int -> String

data Dog = Dog
data Cat = Cat Int

instance Animal Dog where noise _ n = replicate (n `mod` 4) 'w'
instance Animal Cat where noise (Cat k) n = show (k + n)

data Any = forall a. Animal a => Any a

count :: String -> M.Map Char Int
count = foldl' (\m c -> M.insertWith (+) c 1 m) M.empty

primes :: [Int]
primes = sieve [2 ..] where sieve (p : xs) = p : sieve [x | x <- xs, x `mod` p /= 0]
                            sieve [] = []

risky :: Int -> IO Int
risky n
  | n `mod` 7 == 0 = throwIO (userError ("seven " ++ show n))
  | n `mod` 5 == 0 = evaluate (n `div` (n - n))
  | otherwise = return n

main :: IO ()
main = do
  let m = M.unionsWith (+) [count (show (x * x * 7919)) | x <- [1 .. 3000 :: Int]]
  print (M.toList m)
  print (sum (take 300 primes))
  print (foldl' (+) 0 [area (Both (Circle n) (Square (n `mod` 10))) | n <- [1 .. 500]])
  print (sum (map ord (concat [noise' a n | n <- [1 .. 100], a <- [Any Dog, Any (Cat n)]])))
  caught <- newIORef (0 :: Int)
  total <- newIORef (0 :: Int)
  forM_ [1 .. 1000] $ \n ->
    (risky n >>= \v -> modifyIORef' total (+ v))
      `catches` [ Handler (\e -> modifyIORef' caught (+ length (show (e :: IOException))))
                , Handler (\e -> modifyIORef' caught (+ length (show (e :: ArithException)))) ]
  performGC
  readIORef caught >>= print
  readIORef total >>= print
  vars <- forM [1 .. 8 :: Int] $ \k -> do
    v <- newEmptyMVar
    _ <- forkIO (putMVar v $! M.size (M.fromList [(x * k `mod` 1009, x) | x <- [1 .. 2000 :: Int]]))
    return v
  mapM takeMVar vars >>= print
  performGC
  print (take 5 (sortBy (flip compare) (M.elems m)))
  where noise' (Any a) n = noise a n
